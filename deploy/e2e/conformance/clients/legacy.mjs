// The official TypeScript client with its tasks extension in its older era, MCP
// 2025-11-25: node legacy.mjs URL CLIP. It exits with 0 when everything went as
// a user expects.
import assert from 'node:assert/strict';
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import {
  createApplicationInputHandler, createTaskSessionFromClient, resultFromTaskOutcome, toolDeclarationFromMcpTool,
} from '@modelcontextprotocol/ext-tasks/client';
import {
  check, done, isPNG, isVideo, mode, parameter, patience, person, previewOf, renderArguments, untilLine, upload, url,
} from './vidforge.mjs';

// host is a client that declares these capabilities and answers requests for a
// decision by answer.
async function host(elicitation, answer, options) {
  const client = new Client({ name: 'legacy', version: '1.0.0' }, { capabilities: elicitation ? { elicitation } : {}, versionNegotiation: { mode: 'legacy' } });
  await client.connect(new StreamableHTTPClientTransport(url, options));
  assert.equal(client.getProtocolEra(), 'legacy');
  const tools = new Map((await client.listTools()).tools.map((tool) => [tool.name, toolDeclarationFromMcpTool(tool)]));
  const session = createTaskSessionFromClient(client, {
    endpointId: 'vidforge', tools: { currentTool: (name) => tools.get(name) },
    onInputRequest: createApplicationInputHandler({
      elicitation: (request) => answer(request, client),
      sampling: () => { throw new Error('nothing samples'); },
      roots: () => ({ roots: [] }),
    }),
  });
  return {
    client, session,
    render: (args) => session.callTool('vidforge_render_video', args, { task: { preference: 'prefer', retentionMs: 3_600_000 } }),
    close: async () => { await session.close(); await client.close(); },
  };
}
const settle = async (execution) => (await execution.settle({ signal: AbortSignal.timeout(patience) })).outcome;
const approving = (seen) => async (request, client) => {
  seen.push(request.params);
  isPNG((await client.readResource({ uri: previewOf(request.params.message) })).contents);
  return { action: 'accept', content: { approved: true } };
};

if (mode === 'submit') { // and die
  const h = await host({ form: {} }, () => new Promise(() => {}));
  const execution = await h.render(renderArguments(parameter));
  console.log(`reference ${JSON.stringify(execution.serializeReference())}`);
  await new Promise(() => setInterval(() => {}, 1000));
}

const source = await upload();
await check('render, preview, approval by a form, video', async () => {
  const seen = [];
  const h = await host({ form: {} }, approving(seen));
  const execution = await h.render(renderArguments(source));
  await isVideo(resultFromTaskOutcome(await settle(execution)));
  assert.equal(seen.length, 1);
  await h.close();
});
await check('approval on the page that a url names', async () => {
  const seen = [];
  const h = await host({ url: {} }, async (request) => {
    seen.push(request.params);
    await person(request.params.url, 'approve');
    return { action: 'accept' };
  });
  await isVideo(resultFromTaskOutcome(await settle(await h.render(renderArguments(source)))));
  assert.equal(seen.length, 1);
  await h.close();
});
await check('a client that declines by itself: somebody else decides', async () => {
  let declined;
  const asked = new Promise((resolve) => { declined = resolve; });
  const h = await host({ form: {} }, (request) => { declined(); return { action: 'decline' }; });
  const execution = await h.render(renderArguments(source));
  const settled = settle(execution);
  await asked;
  const decided = await h.client.callTool({
    name: 'vidforge_approve_watermark', arguments: { render_id: execution.serializeReference().taskId, approved: true },
  });
  assert.equal(decided.structuredContent.decision, 'approved');
  await isVideo(resultFromTaskOutcome(await settled));
  await h.close();
});
await check('a client without a GET stream decides by the tool', async () => {
  const h = await host({ form: {} }, () => { throw new Error('nothing carries a request'); }, {
    fetch: (input, init) => (init?.method === 'GET' ? Promise.resolve(new Response(null, { status: 405 })) : fetch(input, init)),
  });
  const execution = await h.render(renderArguments(source));
  const settled = settle(execution);
  const id = execution.serializeReference().taskId;
  for (let s = {}; s.state !== 'awaiting_watermark_approval';) {
    await new Promise((resolve) => setTimeout(resolve, 100));
    s = (await h.client.callTool({ name: 'vidforge_get_render_status', arguments: { render_id: id } })).structuredContent;
    assert.ok(!s.terminal, JSON.stringify(s));
    if (s.state === 'awaiting_watermark_approval') await h.client.callTool({ name: s.follow_up.tool, arguments: s.follow_up.arguments });
  }
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
  await h.close();
});
done('@modelcontextprotocol/client, 2025-11-25');
