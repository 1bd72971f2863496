// The official TypeScript client with its tasks extension, MCP 2026-07-28:
// node modern.mjs URL CLIP. It exits with 0 when everything went as a user
// expects.
import assert from 'node:assert/strict';
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import {
  createApplicationInputHandler, createTaskSessionFromClient, resultFromTaskOutcome, toolDeclarationFromMcpTool,
} from '@modelcontextprotocol/ext-tasks/client';
import {
  check, done, extension, isPNG, isVideo, mode, parameter, patience, person, previewOf, renderArguments, untilLine, upload, url,
} from './vidforge.mjs';

const version = '2026-07-28';
const clientInfo = { name: 'modern', version: '1.0.0' };

// host is a client that declares these capabilities and answers requests for a
// decision by answer.
async function host(elicitation, answer) {
  const capabilities = { ...(elicitation ? { elicitation } : {}), extensions: { [extension]: {} } };
  const client = new Client(clientInfo, { capabilities, versionNegotiation: { mode: 'auto' } });
  await client.connect(new StreamableHTTPClientTransport(url));
  assert.equal(client.getProtocolEra(), 'modern');
  const tools = new Map((await client.listTools()).tools.map((tool) => [tool.name, toolDeclarationFromMcpTool(tool)]));
  const errors = [];
  let next = 1;
  // A host of a 2026-07-28 server brings its own way to send tools/call and tasks/*.
  const rawDispatch = async (request, options = {}) => {
    const headers = {
      'content-type': 'application/json', accept: 'application/json, text/event-stream', 'mcp-protocol-version': version, 'mcp-method': request.method,
    };
    const name = request.params?.taskId ?? request.params?.name;
    if (name) headers['mcp-name'] = name;
    for (const [k, v] of Object.entries(options.context?.headers ?? {})) headers[k.toLowerCase()] = v;
    const response = await fetch(url, {
      method: 'POST', signal: options.signal, headers, body: JSON.stringify({ jsonrpc: '2.0', id: next++, ...request }),
    });
    let body = await response.text();
    if (response.headers.get('content-type')?.startsWith('text/event-stream')) {
      body = body.split('\n').filter((line) => line.startsWith('data: ')).at(-1).slice('data: '.length);
    }
    const message = JSON.parse(body);
    return message.error ? { kind: 'error', error: message.error } : { kind: 'result', result: message.result };
  };
  const session = createTaskSessionFromClient(client, {
    endpointId: 'vidforge', tools: { currentTool: (name) => tools.get(name) }, rawDispatch,
    v2RequestFraming: { protocolVersion: version, clientInfo, clientCapabilities: capabilities },
    onInputRequest: createApplicationInputHandler({
      elicitation: (request) => answer(request, client),
      sampling: () => { throw new Error('nothing samples'); },
      roots: () => ({ roots: [] }),
    }),
    onError: (error) => errors.push(error),
  });
  return {
    client, session, errors,
    render: (args) => session.callTool('vidforge_render_video', args),
    plain: async (name, args) => client.callTool({ name, arguments: args }),
    close: async () => { await session.close(); await client.close(); assert.deepEqual(errors, []); },
  };
}
const settle = async (execution) => (await execution.settle({ signal: AbortSignal.timeout(patience) })).outcome;

const approving = (seen) => async (request, client) => {
  seen.push(request.params);
  isPNG((await client.readResource({ uri: previewOf(request.params.message) })).contents);
  return { action: 'accept', content: { approved: true, note: 'looks good' } };
};
const never = () => { throw new Error('asked for a decision'); };

if (mode === 'submit') { // and die
  const h = await host({ form: {} }, never);
  const execution = await h.render(renderArguments(parameter));
  console.log(`reference ${JSON.stringify(execution.serializeReference())}`);
  await new Promise(() => setInterval(() => {}, 1000));
}

const source = await upload();
await check('render, preview, approval by a form, video', async () => {
  const seen = [];
  const h = await host({ form: {} }, approving(seen));
  const outcome = await settle(await h.render(renderArguments(source)));
  assert.equal(outcome.status, 'completed');
  const video = await isVideo(resultFromTaskOutcome(outcome));
  assert.equal(seen.length, 1);
  assert.equal(seen[0].mode ?? 'form', 'form');
  const read = (await h.client.readResource({ uri: video.video_uri })).contents[0];
  assert.equal(Buffer.from(read.blob, 'base64').length, video.size_bytes);
  await h.close();
});
await check('approval on the page that a url names', async () => {
  const seen = [];
  const h = await host({ url: {} }, async (request) => {
    seen.push(request.params);
    await person(request.params.url, 'approve');
    return { action: 'accept' };
  });
  const outcome = await settle(await h.render(renderArguments(source)));
  await isVideo(resultFromTaskOutcome(outcome));
  assert.equal(seen.length, 1);
  assert.equal(seen[0].mode, 'url');
  await h.close();
});
await check('a rejection is a completed task with an error', async () => {
  const h = await host({ form: {} }, () => ({ action: 'accept', content: { approved: false } }));
  const outcome = await settle(await h.render(renderArguments(source)));
  assert.equal(outcome.status, 'completed');
  assert.equal(outcome.result.isError, true);
  assert.equal(outcome.result.structuredContent.code, 'watermark_rejected');
  await h.close();
});
await check('a client that declines by itself: somebody else decides', async () => {
  let declined;
  const asked = new Promise((resolve) => { declined = resolve; });
  const h = await host({ form: {} }, (request) => { declined(request); return { action: 'decline' }; });
  const execution = await h.render(renderArguments(source));
  const settled = settle(execution);
  await asked;
  const id = execution.serializeReference().taskId ?? execution.taskId;
  assert.match(id, /^task_/);
  const status = await h.plain('vidforge_get_render_status', { render_id: id });
  assert.equal(status.structuredContent.state, 'awaiting_watermark_approval');
  const decided = await h.plain('vidforge_approve_watermark', { render_id: id, approved: true });
  assert.equal(decided.structuredContent.decision, 'approved');
  await isVideo(resultFromTaskOutcome(await settled));
  await h.close();
});
await check('a client that dies and comes back', async () => {
  const reference = JSON.parse(await untilLine('reference ', 'submit', source));
  const seen = [];
  const h = await host({ form: {} }, approving(seen));
  await isVideo(resultFromTaskOutcome(await settle(await h.session.resumeTask(reference))));
  assert.equal(seen.length, 1);
  await h.close();
});
await check('a task is cancelled', async () => {
  const h = await host({ form: {} }, () => new Promise(() => {}));
  const execution = await h.render(renderArguments(source));
  await execution.cancel();
  assert.equal((await settle(execution)).status, 'cancelled');
  await h.session.close();
  await h.client.close();
});
await check('a client without tasks', async () => {
  const client = new Client(clientInfo, { capabilities: {}, versionNegotiation: { mode: 'auto' } });
  await client.connect(new StreamableHTTPClientTransport(url));
  const call = async (name, args) => client.callTool({ name, arguments: args });
  let { structuredContent: s } = await call('vidforge_render_video', renderArguments(source));
  assert.equal(s.status, 'accepted');
  let result;
  for (const id = s.render_id; !s.terminal; await new Promise((resolve) => setTimeout(resolve, 100))) {
    result = await call('vidforge_get_render_status', { render_id: id });
    s = result.structuredContent;
    if (s.state === 'awaiting_watermark_approval') {
      const image = result.content.find((block) => block.type === 'image');
      isPNG([{ mimeType: image.mimeType, blob: image.data }]);
      await call(s.follow_up.tool, s.follow_up.arguments);
    }
  }
  await isVideo(result);
  await client.close();
});
done('@modelcontextprotocol/client, 2026-07-28');
