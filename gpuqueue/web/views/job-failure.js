// Why a run failed: what its ending means, the last lines that it wrote, and what can be done.
import { readBytes } from "../api.js";
import { html, useEffect, useState } from "../lib.js";
import { LogText, textOf } from "../log-text.js";
import { Panel } from "../parts/panel.js";

/** Lines at the end of the output that are shown. */
const MOST_LINES = 12;

/** @typedef {import("../job-types.js").Run} Run */

/** The last lines of a text as a terminal would show them, without empty ones at its end. @param {Uint8Array} bytes */
function lastLines(bytes) {
  const log = new LogText();
  log.write(new TextDecoder().decode(bytes));
  return log.lines.map(textOf).join("\n").trimEnd().split("\n").slice(-MOST_LINES).join("\n");
}

/** Scroll to the end: the last lines say why. @param {HTMLElement | null} element */
const toItsEnd = (element) => {
  if (element) element.scrollTop = element.scrollHeight;
};

/** @param {{path: string, run: Run, stream: string}} props */
function Last({ path, run, stream }) {
  const [text, setText] = useState("");
  useEffect(() => {
    const stop = new AbortController();
    // Without them the whole output is below, and it says what is wrong.
    readBytes(`${path}/log`, { attempt: run.attempt, stream, lines: 4 * MOST_LINES }, stop.signal).then(({ bytes }) => setText(lastLines(bytes)), () => null);
    return () => stop.abort();
  }, [path, run.attempt, stream]);
  if (!text) return null;
  return html`
    <h3>${stream === "stderr" ? "The last errors that it wrote" : "The last lines that it wrote"}</h3>
    <pre class="last-lines" ref=${toItsEnd} tabindex="0" role="region" aria-label="Last lines, scrollable">${text}</pre>
  `;
}

/** @param {{view: import("../job-types.js").JobView, run: Run, path: string, onAgain: () => void}} props */
export function Failure({ view, run, path, onAgain }) {
  const { job } = view.record;
  const words = view.failures[run.attempt];
  if (!words || run.ending === null) return null;
  const isMore = view.rights.logs && run.log_path;
  const toOutput = () => document.getElementById("panel-log")?.scrollIntoView();
  return html`
    <${Panel} name="failure" title=${job.attempt > 1 ? `Why run ${run.attempt} failed` : "Why it failed"}>
      <p><strong class="bad-text"><bdi>${run.ending.words}</bdi></strong></p>
      <p>${words}</p>
      ${isMore ? html`<${Last} key=${run.attempt} path=${path} run=${run} stream=${job.spec.separate_stderr ? "stderr" : "log"} />` : null}
      <p class="actions">
        ${isMore ? html`<button type="button" onClick=${toOutput}>Go to the whole output</button>` : null}
        ${view.rights.retry && job.ended_at ? html`<button type="button" onClick=${onAgain}>Run again…</button>` : null}
      </p>
    <//>
  `;
}
