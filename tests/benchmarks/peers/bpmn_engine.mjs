// bpmn-engine on Node.js: service tasks by environment service. The model is read and serialized once, outside the
// measured time.
import { readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const [, , model, home] = process.argv;
const packages = createRequire(pathToFileURL(`${home}/peers.js`));
const load = (name) => import(pathToFileURL(packages.resolve(name)));
const { Engine } = await load('bpmn-engine');
const elements = await load('bpmn-elements');
const moddle = await load('bpmn-moddle');
const { default: serialize, TypeResolver } = await load('moddle-context-serializer');
const { version } = packages(`${home}/node_modules/bpmn-engine/package.json`);

let handled = 0;
const services = {
  noop(_scope, callback) {
    handled += 1;
    callback(null);
  },
};
const BpmnModdle = moddle.BpmnModdle ?? moddle.default;
const parsed = await new BpmnModdle().fromXML(readFileSync(model, 'utf-8'));
const sourceContext = serialize(parsed, TypeResolver(elements.default ?? elements));

async function run(instances) {
  let ended = 0;
  for (let number = 0; number < instances; number += 1) {
    const engine = new Engine({ name: 'chain', sourceContext, variables: { order: number }, services });
    const execution = await new Promise((resolve, reject) => {
      engine.once('end', resolve);
      engine.once('error', reject);
      engine.execute().catch(reject);
    });
    ended += execution.state === 'idle' ? 1 : 0;
  }
  return ended;
}

const say = (value) => process.stdout.write(`${JSON.stringify(value)}\n`);
say({ version, runtime: `Node.js ${process.versions.node}` });
for await (const line of createInterface({ input: process.stdin })) {
  const { instances } = JSON.parse(line);
  const before = handled;
  const cpu = process.cpuUsage();
  const began = process.hrtime.bigint();
  const ended = await run(instances);
  const seconds = Number(process.hrtime.bigint() - began) / 1e9;
  const { user, system } = process.cpuUsage(cpu);
  say({ seconds, cpu_seconds: (user + system) / 1e6, ended, handled: handled - before });
}
