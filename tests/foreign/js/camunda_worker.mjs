// A worker with the genuine camunda-external-task-client-js. Argument: its settings as JSON.
//
//   baseUrl, options (of the Client), credentials ({username, password}), topics: {name: {options, handler}}
//
// Handlers: complete, fail, bpmnError, extend, unlock, hold, slow. All say what the task brought.
import { BasicAuthInterceptor, Client, Variables } from "camunda-external-task-client-js";

const settings = JSON.parse(process.argv[2]);
const say = (event, more = {}) => process.stdout.write(`${JSON.stringify({ event, ...more })}\n`);
const refusal = (error) => ({ status: error.httpStatusCode, type: error.type, message: error.engineMsg });
const ignored = () => {}; // the client tells it by an event as well

const interceptors = settings.credentials ? [new BasicAuthInterceptor(settings.credentials)] : [];
const client = new Client({ baseUrl: settings.baseUrl, ...settings.options, ...(interceptors.length ? { interceptors } : {}) });
for (const name of ["complete", "handleFailure", "handleBpmnError", "extendLock", "unlock", "lock"]) {
  client.on(`${name}:success`, (task) => say(`${name}:success`, { task: task.id ?? task }));
  client.on(`${name}:error`, (task, error) => say(`${name}:error`, { task: task.id ?? task, ...refusal(error) }));
}
client.on("poll:error", (error) => say("poll:error", refusal(error)));

function told(task) {
  const typed = task.variables.getAllTyped();
  const values = task.variables.getAll();
  const kinds = Object.fromEntries(Object.entries(values).map(([name, value]) => [name, value?.constructor?.name ?? null]));
  const { variables, ...rest } = task;
  const types = Object.fromEntries(Object.entries(typed).map(([name, value]) => [name, value.type]));
  return { task: rest, values, kinds, types };
}

const handlers = {
  async complete({ task, taskService }, { result = {}, typed = {}, date }) {
    const variables = new Variables();
    variables.setAll(result);
    variables.setAllTyped(typed);
    if (date) variables.set("date", new Date(date));
    await taskService.complete(task, variables).catch(ignored);
  },
  async fail({ task, taskService }, { failure }) {
    await taskService.handleFailure(task, failure).catch(ignored);
  },
  async bpmnError({ task, taskService }, { code, message, result = {} }) {
    await taskService.handleBpmnError(task, code, message, new Variables().setAll(result)).catch(ignored);
  },
  async extend({ task, taskService }, { duration }) {
    await taskService.extendLock(task, duration).catch(ignored);
    await taskService.complete(task).catch(ignored);
  },
  async unlock({ task, taskService }) {
    await taskService.unlock(task).catch(ignored);
    client.stop();
  },
  async lock({ task, taskService }, { duration }) {
    await taskService.lock(task, duration).catch(ignored);
  },
  async hold() {},
};

for (const [topic, { options = {}, handler, ...more }] of Object.entries(settings.topics)) {
  client.subscribe(topic, options, async (given) => {
    say("task", told(given.task));
    await handlers[handler](given, more);
  });
}

// Commands from outside: what a handler would do, for a task that was held before, or for somebody else's.
const { taskService } = client;
process.stdin.setEncoding("utf8");
let pending = "";
process.stdin.on("data", async (text) => {
  const lines = (pending + text).split("\n");
  pending = lines.pop();
  for (const line of lines) {
    const { call, task, args = [] } = JSON.parse(line);
    if (call === "stop") client.stop();
    else await taskService[call](task, ...args).catch(ignored);
  }
});
say("ready");
