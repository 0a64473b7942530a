// graphile-worker, set up as its page on performance says: a local queue, and completions in batches.
import { Tally, compete, load, until, url } from './queues.mjs';

const { run, runMigrations, makeWorkerUtils, Logger } = await load('graphile-worker');
const { default: pg } = await load('pg');

const CONCURRENT_JOBS = 24;
const preset = { worker: { localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 } };
const ADD = `select 1 from graphile_worker.add_jobs(array(
  select json_populate_record(null::graphile_worker.job_spec,
                              json_build_object('identifier', 'noop', 'payload', json_build_object('number', i)))
  from generate_series(1, $1::int) i))`;

const tally = new Tally();
const logger = new Logger(() => () => {});
const pgPool = new pg.Pool({ connectionString: url, max: CONCURRENT_JOBS + 1 });
pgPool.on('error', (error) => console.error(error));
pgPool.on('connect', (client) => client.on('error', (error) => console.error(error)));
await runMigrations({ pgPool, logger });
const utils = await makeWorkerUtils({ pgPool, logger });
const taskList = { noop: async ({ number }) => tally.handle(number) };
let runner;

async function listen() {
  const concurrency = CONCURRENT_JOBS;
  runner ??= await run({ pgPool, taskList, concurrency, noHandleSignals: true, logger, preset });
}

await compete('graphile-worker', tally, {
  listen,
  load: (jobs) => pgPool.query(ADD, [jobs]),
  async drain(jobs) {
    const handled = tally.expect(jobs);
    await listen();
    await handled;
    await until(async () => (await pgPool.query('select count(*)::int as left from graphile_worker.jobs')).rows[0].left === 0);
  },
  send: (number) => utils.addJob('noop', { number }),
  async close() {
    await runner?.stop();
    await utils.release();
  },
});
