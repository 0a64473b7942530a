// pg-boss: batches while there is much to do, and LISTEN/NOTIFY where a single job shall start soon.
import { Tally, compete, load, until, url } from './queues.mjs';

const { PgBoss } = await load('pg-boss');
const { default: pg } = await load('pg');

const BATCH = 500;
const LOAD_BATCH = 1000;
const boss = new PgBoss({ connectionString: url, max: 10, useListenNotify: true });
boss.on('error', (error) => console.error(error));
await boss.start();
await boss.createQueue('many');
await boss.createQueue('single', { notify: true });
const pool = new pg.Pool({ connectionString: url, max: 1 });
const tally = new Tally();
const DONE = "select count(*)::int as done from pgboss.job where name = 'many' and state = 'completed'";
let listens;

await compete('pg-boss', tally, {
  async load(jobs) {
    for (let first = 0; first < jobs; first += LOAD_BATCH) {
      const length = Math.min(LOAD_BATCH, jobs - first);
      await boss.insert('many', Array.from({ length }, (_, offset) => ({ data: { number: first + offset } })));
    }
  },
  async drain(jobs) {
    const handled = tally.expect(jobs);
    const options = { batchSize: BATCH, localConcurrency: 2, pollingIntervalSeconds: 0.5, burstWhenBatchFull: true };
    await boss.work('many', options, async (batch) => tally.handle(undefined, batch.length));
    await handled;
    await until(async () => (await pool.query(DONE)).rows[0].done === jobs);
  },
  async listen() {
    const options = { batchSize: 1, localConcurrency: 4, pollingIntervalSeconds: 0.5 };
    listens ??= await boss.work('single', options, async ([job]) => tally.handle(job.data.number));
    await new Promise((resolve) => setTimeout(resolve, 1500)); // its listener connects meanwhile
  },
  send: (number) => boss.send('single', { number }),
  async close() {
    await boss.stop({ graceful: false });
    await pool.end();
  },
});
