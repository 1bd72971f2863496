// The official TypeScript clients, the present one with its tasks extension and
// the older one with the tasks of MCP 2025-11-25, against the fixture:
// node client.mjs URL. It exits with 0 when everything went as a user expects.
import { Client as CoreClient } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport as CoreTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { CallToolResultSchema, ElicitRequestSchema } from '@modelcontextprotocol/sdk/types.js';
import assert from 'node:assert/strict';
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import {
  createApplicationInputHandler, createTaskSessionFromClient, resultFromTaskOutcome, toolDeclarationFromMcpTool,
} from '@modelcontextprotocol/ext-tasks/client';

const url = new URL(process.argv[2]);
const clientInfo = { name: 'conformance-client', version: '1.0.0' };
const version = '2026-07-28';
const extension = 'io.modelcontextprotocol/tasks';
const text = (result) => result.content[0].text;
let checks = 0;
async function check(name, run) {
  await run();
  checks++;
  console.log(`  ok ${name}`);
}

// A host of a 2026-07-28 server brings its own way to send tools/call and tasks/*.
let nextID = 1;
async function dispatch(request, options = {}) {
  const headers = {
    'content-type': 'application/json', accept: 'application/json, text/event-stream',
    'mcp-protocol-version': version, 'mcp-method': request.method,
  };
  const name = request.params?.taskId ?? request.params?.name;
  if (name) headers['mcp-name'] = name;
  for (const [k, v] of Object.entries(options.context?.headers ?? {})) headers[k.toLowerCase()] = v;
  const response = await fetch(url, {
    method: 'POST', signal: options.signal, headers, body: JSON.stringify({ jsonrpc: '2.0', id: nextID++, ...request }),
  });
  let body = await response.text();
  if (response.headers.get('content-type')?.startsWith('text/event-stream')) {
    body = body.split('\n').filter((line) => line.startsWith('data: ')).at(-1).slice('data: '.length);
  }
  const message = JSON.parse(body);
  return message.error ? { kind: 'error', error: message.error } : { kind: 'result', result: message.result };
}

const capabilities = { elicitation: {}, extensions: { [extension]: {} } };
async function connectModern() {
  const client = new Client(clientInfo, { capabilities, versionNegotiation: { mode: 'auto' } });
  await client.connect(new StreamableHTTPClientTransport(url));
  return client;
}
const modern = await connectModern();
await check('the era and the capabilities are found', () => {
  assert.equal(modern.getProtocolEra(), 'modern');
  const caps = modern.getServerCapabilities();
  assert.deepEqual(caps.extensions, { [extension]: {} });
  assert.equal(caps.tasks, undefined);
  assert.equal(caps.logging, undefined);
});
const tools = new Map((await modern.listTools()).tools.map((tool) => [tool.name, toolDeclarationFromMcpTool(tool)]));
const asked = [];
const openSession = (client) => createTaskSessionFromClient(client, {
  endpointId: 'fixture',
  tools: { currentTool: (name) => tools.get(name) },
  rawDispatch: dispatch,
  v2RequestFraming: { protocolVersion: version, clientInfo, clientCapabilities: capabilities },
  onInputRequest: createApplicationInputHandler({
    elicitation: (request) => { asked.push(request.params.message); return { action: 'accept', content: { confirm: true } }; },
    sampling: () => { throw new Error('nothing samples'); },
    roots: () => ({ roots: [] }),
  }),
  onError: (error) => { throw error; },
});
const session = openSession(modern);
const settle = async (execution) => (await execution.settle({ signal: AbortSignal.timeout(20_000) })).outcome;
const run = async (name, args) => settle(await session.callTool(name, args));

await check('a plain tool', async () => {
  assert.equal(text(resultFromTaskOutcome(await run('greet', { name: 'TypeScript' }))), 'Hello, TypeScript!');
});
await check('a task to its result', async () => {
  const outcome = await run('slow_compute', { seconds: 0.5, label: 'x' });
  assert.equal(outcome.status, 'completed');
  assert.match(text(resultFromTaskOutcome(outcome)), /computed x/);
});
await check('a task that asks', async () => {
  assert.equal(text(resultFromTaskOutcome(await run('confirm_delete', { filename: 'a.txt' }))), 'deleted: true');
  assert.deepEqual(asked, ['Go on?']);
});
await check('a task that asks twice at once', async () => {
  assert.equal(text(resultFromTaskOutcome(await run('multi_input', {}))), 'both were answered');
});
await check('a tool error is a completed task', async () => {
  const outcome = await run('failing_job', {});
  assert.equal(outcome.status, 'completed');
  assert.equal(outcome.result.isError, true);
});
await check('a protocol error is a failed task', async () => {
  assert.equal((await run('protocol_error_job', {})).status, 'failed');
});
await check('a task is taken up again by another process', async () => {
  const execution = await session.callTool('slow_compute', { seconds: 1, label: 'again' });
  const reference = JSON.parse(JSON.stringify(execution.serializeReference()));
  await execution.detach();
  const client = await connectModern();
  const second = openSession(client);
  assert.equal((await settle(await second.resumeTask(reference))).status, 'completed');
  await second.close();
  await client.close();
});
await check('a task is cancelled', async () => {
  const execution = await session.callTool('slow_compute', { seconds: 60, label: 'never' });
  await execution.cancel();
  assert.equal((await settle(execution)).status, 'cancelled');
});
await session.close();
await modern.close();

// An older client gets the same tools within a session. This one knows nothing
// of the tasks that are declared to its version.
const legacy = new Client(clientInfo, { capabilities: {}, versionNegotiation: { mode: 'legacy' } });
await legacy.connect(new StreamableHTTPClientTransport(url));
await check('an older client', async () => {
  assert.equal(legacy.getProtocolEra(), 'legacy');
  assert.deepEqual(legacy.getServerCapabilities().tasks, { cancel: {}, requests: { tools: { call: {} } } });
  assert.equal(text(await legacy.callTool({ name: 'greet', arguments: { name: 'old' } })), 'Hello, old!');
  assert.match(text(await legacy.callTool({ name: 'slow_compute', arguments: { seconds: 0, label: 'y' } })), /computed y/);
});
await legacy.close();

// The older official client knows the tasks of 2025-11-25.
const core = new CoreClient(clientInfo, { capabilities: { elicitation: {} } });
const forms = [];
core.setRequestHandler(ElicitRequestSchema, async ({ params }) => {
  forms.push(params);
  return { action: 'accept', content: { confirm: true } };
});
await core.connect(new CoreTransport(url));
await core.listTools(); // it learns there which tools run as tasks
const coreTask = async (name, args, options) => {
  const messages = [];
  for await (const m of core.experimental.tasks.callToolStream({ name, arguments: args }, CallToolResultSchema, { task: { ttl: 60_000 }, ...options })) messages.push(m);
  assert.equal(messages[0].type, 'taskCreated');
  return { id: messages[0].task.taskId, last: messages.at(-1), messages };
};
const relatedTask = 'io.modelcontextprotocol/related-task';
await check('2025-11-25: a task to its result', async () => {
  const { id, last } = await coreTask('slow_compute', { seconds: 1, label: 'z' });
  assert.equal(last.type, 'result', JSON.stringify(last));
  assert.match(text(last.result), /computed z/);
  assert.equal(last.result._meta[relatedTask].taskId, id);
});
await check('2025-11-25: a task that asks', async () => {
  const { id, last } = await coreTask('confirm_delete', { filename: 'b' });
  assert.equal(last.type, 'result', JSON.stringify(last));
  assert.equal(forms.length, 1);
  assert.equal(forms[0]._meta[relatedTask].taskId, id);
});
await check('2025-11-25: a tool error is a failed task', async () => {
  const { id, messages } = await coreTask('failing_job', {});
  const { status, statusMessage } = await core.experimental.tasks.getTask(id);
  assert.equal(status, 'failed', JSON.stringify(messages));
  assert.ok(statusMessage);
  assert.equal((await core.experimental.tasks.getTaskResult(id, CallToolResultSchema)).isError, true);
});
await check('2025-11-25: a task is cancelled', async () => {
  const stream = core.experimental.tasks.callToolStream({ name: 'slow_compute', arguments: { seconds: 60, label: 'never' } }, CallToolResultSchema, { task: {} });
  const { value } = await stream.next();
  assert.equal((await core.experimental.tasks.cancelTask(value.task.taskId)).status, 'cancelled');
  await assert.rejects(core.experimental.tasks.cancelTask(value.task.taskId), /-32602/);
  await stream.return();
});
await core.close();
console.log(`client: ${checks} checks passed`);
