// What the new job runs: a script from this machine, or what an earlier job ran.
import { address } from "../api.js";
import { isEnd } from "../job-states.js";
import { html, useEffect, useRef, useState } from "../lib.js";
import { Field, described } from "../parts/field.js";
import { Tabs } from "../parts/tabs.js";
import { useRead } from "../reading.js";
import { endingOf, labelOf } from "../record.js";
import { refine } from "../route.js";
import { clock, size } from "../words.js";

/** @typedef {import("../history-types.js").FormStart} FormStart */
/** @typedef {import("../history-types.js").HistoryPage} HistoryPage */
/** @typedef {Event & {currentTarget: HTMLInputElement}} Changed */

/** Earlier jobs that are suggested. */
const SUGGESTED = 20;
/** How long a number waits for the next digit, in milliseconds. */
const PAUSE_MS = 500;

/** @param {{isAgain: boolean}} props */
export function SourceChoice({ isAgain }) {
  const choices = [["script", "A script"], ["again", "An earlier job again"]];
  return html`<${Tabs} label="What to run" choices=${choices} chosen=${isAgain ? "again" : "script"} onChoose=${(/** @type {string} */ value) => refine(value === "again" ? { how: "again" } : { how: null, again: null })} />`;
}

/** @param {{file: File | null, start: FormStart, fault: string | null, onFile: (file: File | null) => void}} props */
export function ScriptFile({ file, start, fault, onFile }) {
  const hint = html`One file of at most ${size(start.file_bytes)}: it travels to the host that runs it. For a directory, type <code>gpuqueue submit</code> there.`;
  return html`
    <${Field} id="job-file" label="Script" wide hint=${hint} fault=${fault}>
      ${file ? html`<p class="chosen-file" role="status">Chosen: <bdi>${file.name}</bdi> <small>${size(file.size)}</small></p>` : null}
      <input id="job-file" type="file" required ...${described("job-file", fault, true)} onChange=${(/** @type {Changed} */ event) => onFile(event.currentTarget.files?.[0] ?? null)} />
    <//>
  `;
}

/** @param {{me: import("../types.js").Me, again: string, start: FormStart | null}} props */
export function EarlierJob({ me, again, start }) {
  const [text, setText] = useState(again);
  const timer = useRef(0);
  /** @type {import("../reading.js").Once<HistoryPage>} */
  const { value: page } = useRead(address("/history", { user: me.account, limit: SUGGESTED }));
  useEffect(() => setText(again), [again]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const jobs = (page?.records ?? []).filter((each) => isEnd(each.job.state));
  /** @param {Changed} event */
  const typed = (event) => {
    const next = event.currentTarget.value;
    setText(next);
    clearTimeout(timer.current);
    timer.current = window.setTimeout(() => refine({ how: "again", again: next.trim() || null }), PAUSE_MS);
  };
  return html`
    <${Field} id="job-again" label="Job" wide hint="The id of a job that has ended">
      <input id="job-again" class="short" value=${text} onInput=${typed} list="earlier-jobs" placeholder=${jobs.length ? labelOf(jobs[0].job) : "17"} autocomplete="off" inputmode="numeric" required aria-describedby="job-again-hint" />
      <datalist id="earlier-jobs">${jobs.map((each) => html`<option key=${each.job.id} value=${labelOf(each.job)}>${each.job.spec.name}, ${each.job.state}</option>`)}</datalist>
    <//>
    ${start?.label ? html`<p class="field whole">Runs again: <code class="command-line">${start.command}</code></p><p class="field whole">${start.what} <bdi>${start.again}</bdi></p>` : null}
    ${!again && page ? html`<${Suggestions} jobs=${jobs} />` : null}
  `;
}

/** @param {{jobs: import("../history-types.js").HistoryRecord[]}} props */
function Suggestions({ jobs }) {
  if (!jobs.length) return html`<div class="empty field whole"><p>None of your jobs has ended yet. Submit a script, or type:</p><pre>gpuqueue submit train.py --mem 6G</pre></div>`;
  return html`
    <ul class="suggestions field whole" aria-label="Your last jobs">
      ${jobs.map((each) => {
        const label = labelOf(each.job);
        return html`<li key=${label}><button type="button" class="plain" onClick=${() => refine({ how: "again", again: label })}>${label} <bdi>${each.job.spec.name}</bdi></button>
          <small>${each.job.state}${endingOf(each) ? html`, <bdi>${endingOf(each)}</bdi>` : null}${each.job.ended_at ? `, ${clock(each.job.ended_at)}` : ""}</small></li>`;
      })}
    </ul>
  `;
}
