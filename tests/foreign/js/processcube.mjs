// Drives the genuine ProcessCube client by the commands that come in, one JSON object a line, and prints what it does.
import readline from 'node:readline'
import clientPackage from '@5minds/processcube_engine_client'

const { EngineClient, ExternalTaskApiClient, ExternalTaskWorker, restSettings } = clientPackage
const [, , url, token] = process.argv
const identity = token && { token, userId: 'somebody' }
const client = new EngineClient(url, identity)
const api = new ExternalTaskApiClient(url, identity)
const workers = {}
const held = {}

function tell(event, values) {
  process.stdout.write(JSON.stringify({ event, ...values }) + '\n')
}

function revived(value) {
  if (Array.isArray(value)) return value.map(revived)
  if (value && value.$regexp) return new RegExp(value.$regexp[0], value.$regexp[1])
  return value
}

function failureOf(error) {
  return { name: error.name, code: error.code, message: error.message, details: error.additionalInformation }
}

// What a handler does with its task.
const behaviours = {
  echo: (payload) => ({ seen: payload }),
  nothing: () => undefined,
  fail: (payload) => {
    const error = new Error('the card was declined')
    error.name = payload?.as ?? 'Declined'
    throw error
  },
  hold: (_payload, task, signal) => new Promise((resolve) => {
    held[task.id] = resolve
    signal.addEventListener('abort', () => tell('aborted', { task: task.id }))
  }),
}

// The first call gets the first token, and so on; the last one stays.
function identityOf(tokens) {
  const left = [...tokens]
  return async () => {
    tell('identity', { left: left.length })
    return { token: left.length > 1 ? left.shift() : left[0], userId: 'somebody' }
  }
}

function startWorker({ name, topic, behaviour, config, tokens }) {
  const settings = { workerId: name, ...config, payloadFilter: revived(config?.payloadFilter) }
  if (tokens) settings.identity = identityOf(tokens)
  const worker = new ExternalTaskWorker(url, topic, async (payload, task, signal) => {
    tell('task', { worker: name, task })
    return behaviours[behaviour](payload, task, signal)
  }, settings)
  worker.onWorkerError((type, error) => tell('worker_error', { worker: name, type, ...failureOf(error) }))
  worker.start()
  workers[name] = worker
}

async function run(command) {
  if (command.call) {
    const [area, method] = command.call.split('.')
    const target = area === 'api' ? api : client[area]
    return target[method](...(command.args ?? []).map(revived))
  }
  if (command.listen) {
    const [area, method] = command.listen.split('.')
    await client[area][method]((message) => tell('notified', { method, message }))
    return null
  }
  if (command.connected) {
    if (client.notification.isSocketConnected()) return null
    return new Promise((resolve) => client.notification.onConnected(() => resolve(null)))
  }
  if (command.worker) return startWorker(command.worker)
  if (command.stop) return workers[command.stop].stop()
  if (command.reset) {
    for (const name of Object.keys(workers)) {
      workers[name].stop()
      delete workers[name]
    }
    client.notification.disconnectSocket()
    return null
  }
  if (command.release) return held[command.release](command.result)
  if (command.paths) return restSettings.paths
  throw new Error(`no such command: ${JSON.stringify(command)}`)
}

for await (const line of readline.createInterface({ input: process.stdin })) {
  const command = JSON.parse(line)
  run(command).then(
    (value) => tell('answer', { id: command.id, value: value ?? null }),
    (error) => tell('failed', { id: command.id, ...failureOf(error) }),
  )
}
