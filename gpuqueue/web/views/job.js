// One job: its whole story, its memory, its output, what it asked for, and what can be done with it.
import { address, usePolled } from "../api.js";
import { isActive, isEnd } from "../job-states.js";
import { html, useEffect, useRef, useState, visible } from "../lib.js";
import { useNow } from "../now.js";
import { Tabs } from "../parts/tabs.js";
import { Trouble } from "../parts/trouble.js";
import { lastRun } from "../record.js";
import { addSample } from "../samples.js";
import { Dependencies } from "./job-dependencies.js";
import { Failure } from "./job-failure.js";
import { JobHead } from "./job-head.js";
import { IdleMark, Marks } from "./job-idle.js";
import { Log } from "./job-log.js";
import { Memory } from "./job-memory.js";
import { Members } from "./job-members.js";
import { Metrics } from "./job-metrics.js";
import { Request } from "./job-request.js";
import { Story } from "./job-story.js";
import { Why } from "./job-why.js";

const LIVE_MS = 1000;
const VIEW_MS = 5000;
const ENDED_MS = 15000;
/** The history has a change of an ended job after so long. */
const HISTORY_MS = 1500;
/** Workers write the figures of a run as often. */
const FIGURES_MS = 10000;

/** @typedef {import("../types.js").Me} Me */
/** @typedef {import("../job-types.js").JobView} JobView */
/** @typedef {import("../job-types.js").LiveJob} LiveJob */
/** @typedef {import("../job-types.js").Run} Run */

/** Whether nothing of a job will change by itself. @param {JobView | null} view */
function isSettled(view) {
  return Boolean(view && isEnd(view.record.job.state) && lastRun(view.record)?.ending !== null);
}

/** Read a job: what it does now each second, and its record when that has changed. @param {string} path */
function useJob(path) {
  const [isOver, setOver] = useState(false);
  /** @type {import("../api.js").Polled<JobView>} */
  const view = usePolled(address(`${path}/view`), isOver ? ENDED_MS : VIEW_MS);
  /** @type {import("../api.js").Polled<LiveJob>} */
  const live = usePolled(isOver ? null : address(`${path}/live`), LIVE_MS);
  const row = live.value?.row;
  const step = row ? [row.state, row.attempt, row.note, row.priority, row.reason, row.idle_since, ...row.marks.map((each) => each.kind), ...row.tags].join(" ") : "";
  const before = useRef(step);
  useEffect(() => {
    if (before.current !== step) view.again();
    before.current = step;
  }, [step]);
  useEffect(() => setOver(isSettled(view.value)), [view.value]);
  return { view, live };
}

/** @param {{me: Me, id: string}} props */
export function Job({ me, id }) {
  return html`<${Page} key=${id} me=${me} id=${id} />`;
}

/** @param {{me: Me, id: string}} props */
function Page({ me, id }) {
  const path = `/jobs/${encodeURIComponent(id)}`;
  const { view: polled, live: lively } = useJob(path);
  const { value: view, error } = polled;
  const live = lively.value;
  const now = useNow(live?.at ?? view?.at ?? null);
  const [asks, setAsks] = useState(/** @type {import("./job-actions.js").Asks} */ (null));
  const [chosen, setChosen] = useState(/** @type {number | null} */ (null));
  const goesOn = Boolean(view && isActive(live?.row?.state ?? view.record.job.state));
  /** @type {import("../api.js").Polled<import("../job-types.js").RunFigures>} */
  const figures = usePolled(goesOn ? address(`${path}/figures`) : null, FIGURES_MS);
  useEffect(() => {
    if (live?.row && live.devices.length) addSample(`${live.row.id}:${live.row.attempt}`, new Date(live.at).getTime(), live.devices);
  }, [live]);
  useEffect(() => {
    if (view) document.title = visible(`${id} ${view.record.job.spec.name} - gpuqueue`);
  }, [view, id]);
  const change = () => {
    polled.again();
    lively.again();
    setTimeout(polled.again, HISTORY_MS);
  };

  if (!view) {
    if (error && [400, 404].includes(error.status)) return html`<div class="empty"><h1>Job ${id}</h1><p>${error.message}</p><p><a class="button" href="#/queue">Show the queue</a></p></div>`;
    return html`<${Trouble} error=${error} />${error ? null : html`<p class="loading">Loading job ${id}…</p>`}`;
  }
  const { job, runs } = view.record;
  const row = live?.row ?? null;
  const state = row && !isEnd(job.state) ? row.state : job.state;
  const recorded = runs.find((each) => each.attempt === chosen) ?? lastRun(view.record);
  const isNow = Boolean(recorded && isActive(state) && recorded.attempt === (row?.attempt ?? job.attempt) && !recorded.ending);
  const run = isNow && figures.value ? withFigures(/** @type {Run} */ (recorded), figures.value) : recorded;
  const isArray = job.spec.array !== null;
  return html`
    <div class=${run ? "job-page has-run" : "job-page"}>
      <${Trouble} error=${error ?? lively.error} at=${view.at} />
      ${view.away ? html`<p class="banner" role="status">A part of this is missing: ${view.away}</p>` : null}
      <${JobHead} me=${me} view=${view} live=${live} state=${state} now=${now} path=${path} asks=${asks} onAsk=${setAsks} onChange=${change} />
      <${IdleMark} view=${view} live=${live} now=${now} />
      <${Marks} view=${view} run=${run} now=${now} />
      ${["queued", "held"].includes(state) && !(isArray && row?.members?.waiting === 0) ? html`<${Why} path=${path} row=${row} />` : null}
      ${runs.length > 1 ? html`<${RunChoice} runs=${runs} run=${run} onChoose=${setChosen} />` : null}
      ${run ? html`<${Failure} view=${view} run=${run} path=${path} onAgain=${() => setAsks("again")} />` : null}
      ${run?.notes.length ? html`<div class="banner">${run.notes.map((note) => html`<p key=${note.words}><bdi>${note.words}</bdi></p>`)}</div>` : null}
      ${isArray ? html`<${Members} id=${id} path=${path} state=${state} view=${view} now=${now} onChange=${change} />` : null}
      ${run ? html`<${Memory} view=${view} run=${run} live=${isNow ? live : null} now=${now} />` : null}
      <${Story} view=${view} path=${path} now=${now} />
      ${run ? html`<${Metrics} values=${run.values} sees=${view.rights.logs && !isArray} />` : null}
      ${run ? html`<${Log} key=${run.attempt} view=${view} run=${run} path=${path} isNow=${isNow} />` : null}
      <${Request} view=${view} path=${path} run=${recorded} />
      <${Dependencies} view=${view} />
    </div>
  `;
}

/** A run that goes on with its figures so far. @param {Run} run @param {import("../job-types.js").RunFigures} figures @returns {Run} */
function withFigures(run, figures) {
  const devices = run.devices.map((each) => ({ ...each, timeline: figures.timelines[each.uuid] ?? null }));
  return { ...run, devices, values: figures.values };
}

/** @param {{runs: import("../job-types.js").Run[], run: import("../job-types.js").Run | null, onChoose: (attempt: number | null) => void}} props */
function RunChoice({ runs, run, onChoose }) {
  const newest = String(runs.at(-1)?.attempt);
  const choices = runs.slice(-12).map((each) => [String(each.attempt), `Run ${each.attempt}`]);
  return html`<${Tabs} label="Run" kind="run-choice" choices=${choices} chosen=${String(run?.attempt)} onChoose=${(/** @type {string} */ value) => onChoose(value === newest ? null : Number(value))} />`;
}
