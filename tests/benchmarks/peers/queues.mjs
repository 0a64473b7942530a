// What every job queue does that is measured beside us: take jobs in, work them off, and start each one soon.
//
// Arguments of the program: the database's URL, and the directory in whose node_modules the packages are. It answers
// lines of JSON on standard input: {"do": "load" | "drain", "jobs": N} and {"do": "latency", "jobs": N, "rate": R}.
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
import { pathToFileURL } from 'node:url';

export const [, , url, home] = process.argv;
const packages = createRequire(pathToFileURL(`${home}/peers.js`));

export const load = (name) => import(pathToFileURL(packages.resolve(name)));

const sleep = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

// The handler's side: counts jobs, and notes when each one of a latency run starts.
export class Tally {
  handled = 0;
  starts = new Map();

  expect(jobs) {
    this.handled = 0;
    this.first = undefined;
    return new Promise((resolve) => {
      this.check = () => this.handled >= jobs && resolve();
    });
  }

  handle(number, jobs = 1) {
    this.first ??= performance.now();
    this.starts.set(number, performance.now());
    this.handled += jobs;
    this.check?.();
  }
}

// Ask until it is true: the answers of the queue's own tables say what is durable.
export async function until(question) {
  while (!(await question())) await sleep(5);
}

// Time counts from the first handler's start, where there are handlers, and not from that of the worker.
async function measure(tally, work) {
  tally.first = undefined;
  const cpu = process.cpuUsage();
  const began = performance.now();
  await work();
  const seconds = (performance.now() - (tally.first ?? began)) / 1000;
  const { user, system } = process.cpuUsage(cpu);
  return { seconds, cpu_seconds: (user + system) / 1e6 };
}

// Jobs at a steady pace, whether or not the ones before have started.
async function latency(queue, tally, jobs, rate) {
  await queue.listen();
  const started = tally.expect(jobs);
  const sent = [];
  const sends = [];
  const began = performance.now();
  for (let number = 0; number < jobs; number += 1) {
    await sleep(Math.max(0, began + (number * 1000) / rate - performance.now()));
    sent.push(performance.now());
    sends.push(queue.send(number));
  }
  await Promise.all(sends);
  await started;
  return { waits_ms: sent.map((at, number) => tally.starts.get(number) - at) };
}

// `queue` has load(jobs), drain(jobs), listen(), send(number) and close(); drain ends when every job is durably done.
export async function compete(name, tally, queue) {
  const { version } = packages(`${home}/node_modules/${name}/package.json`);
  const say = (value) => process.stdout.write(`${JSON.stringify(value)}\n`);
  say({ version, runtime: `Node.js ${process.versions.node}` });
  for await (const line of createInterface({ input: process.stdin })) {
    const { do: what, jobs, rate } = JSON.parse(line);
    if (what === 'latency') say(await latency(queue, tally, jobs, rate));
    else say(await measure(tally, () => queue[what](jobs)));
  }
  await queue.close();
  process.exit(0);
}
