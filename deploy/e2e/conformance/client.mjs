// The official TypeScript client and its tasks extension against the fixture:
// node client.mjs URL. It exits with 0 when everything went as a user expects.
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

// An older client gets the same tools within a session, and no tasks.
const legacy = new Client(clientInfo, { capabilities: {}, versionNegotiation: { mode: 'legacy' } });
await legacy.connect(new StreamableHTTPClientTransport(url));
await check('an older client', async () => {
  assert.equal(legacy.getProtocolEra(), 'legacy');
  assert.equal(legacy.getServerCapabilities().tasks, undefined);
  assert.equal(text(await legacy.callTool({ name: 'greet', arguments: { name: 'old' } })), 'Hello, old!');
  assert.match(text(await legacy.callTool({ name: 'slow_compute', arguments: { seconds: 0, label: 'y' } })), /computed y/);
});
await legacy.close();
console.log(`client: ${checks} checks passed`);
