// What a job is and does, in a few words, and the buttons to change it.
import { address, usePolled } from "../api.js";
import { NO_TURN, isActive, isEnd } from "../job-states.js";
import { html } from "../lib.js";
import { labelOf, lastRun } from "../record.js";
import { jobLink, link } from "../route.js";
import { clock, deviceLabel, duration, fullTime, placeOf, reasonOf } from "../words.js";
import { JobActions } from "./job-actions.js";
import { ProgressBar } from "./queue-row.js";

const PROGRESS_MS = 5000;
/** @typedef {import("../job-types.js").JobView} JobView */
/** @typedef {import("../job-types.js").LiveJob} LiveJob */

/** @param {{view: JobView, live: LiveJob | null, state: string, now: number}} props */
function Course({ view, live, state, now }) {
  const { job } = view.record;
  const row = live?.row ?? null;
  const run = lastRun(view.record);
  if (row?.members) return row.members.words;
  if (isActive(state)) {
    const since = row?.started_at ?? job.started_at;
    const ran = since ? `for ${duration((now - new Date(since).getTime()) / 1000)}` : "";
    const limit = job.spec.time_limit_s ? ` of ${duration(job.spec.time_limit_s)}` : "";
    const places = (live?.devices.length ? live.devices : run && !run.ending ? run.devices : []).map(deviceLabel).join(" and ");
    return html`${ran}${limit} on ${row?.host ?? job.host ?? "its host"}${places ? `, ${places}` : ""}`;
  }
  if (isEnd(state)) {
    const took = run?.ending && run.duration_s !== null ? ` after ${duration(run.duration_s)}` : "";
    return html`<bdi>${view.ended}${took}</bdi>${job.ended_at ? html`, <time datetime=${job.ended_at} title=${fullTime(job.ended_at)}>${clock(job.ended_at)}</time>` : null}`;
  }
  if (state === "queued" && live?.place && !NO_TURN.has(row?.reason ?? "")) return html`${placeOf(live.place)}`;
  return html`${row ? reasonOf(row) : ""}${job.because ? html` <bdi>${job.because}</bdi>` : null}`;
}

/** @param {{path: string, id: number}} props */
function Progress({ id }) {
  /** @type {import("../api.js").Polled<Record<number, import("../types.js").Progress>>} */
  const { value } = usePolled(address("/job-progress", { id }), PROGRESS_MS);
  return value?.[id] ? html`<p class="job-progress"><${ProgressBar} progress=${value[id]} /></p>` : null;
}

/** The job that this one runs again, and those that run this one again. @param {{view: JobView}} props */
function Again({ view }) {
  const { retry_of: first } = view.record.job.spec;
  return html`
    ${first === null ? null : html`<p class="job-again">It runs <a href=${jobLink(first)}>job ${first}</a> again.</p>`}
    ${view.retries.length ? html`<p class="job-again">It was run again as ${view.retries.map((each, place) => html`${place ? ", " : ""}<a key=${each.id} href=${jobLink(each.id)}>job ${each.id}</a>${each.state ? html` <small>${each.state}</small>` : null}`)}.</p>` : null}
  `;
}

/**
 * @param {object} props
 * @param {import("../types.js").Me} props.me
 * @param {JobView} props.view
 * @param {LiveJob | null} props.live
 * @param {string} props.state
 * @param {number} props.now
 * @param {string} props.path
 * @param {import("./job-actions.js").Asks} props.asks
 * @param {(asks: import("./job-actions.js").Asks) => void} props.onAsk
 * @param {() => void} props.onChange
 */
export function JobHead({ me, view, live, state, now, path, asks, onAsk, onChange }) {
  const { job } = view.record;
  const { spec, member } = job;
  const label = labelOf(job);
  const values = Object.entries(view.values);
  const shown = live?.row?.members?.running ? "running" : state; // some members of an array run, others wait
  const isGood = state === "succeeded";
  return html`
    <div class="job-head">
      <div class="job-title">
        <h1>${spec.array ? "Array" : "Job"} ${label} <bdi>${spec.name}</bdi></h1>
        <p class="job-state">
          <span class=${`dot ${shown}`} aria-hidden="true"></span><strong class=${isGood ? "good-text" : ["failed", "lost"].includes(state) ? "bad-text" : ""}>${shown}</strong>
          <span class="course"><${Course} view=${view} live=${live} state=${state} now=${now} /></span>
        </p>
        <p class="job-facts"><bdi>${spec.account.name}</bdi>
          ${job.tags.map((each) => html`<a key=${each} class="tag" href=${link(isEnd(state) ? "history" : "queue", { tag: each })}><bdi>${each}</bdi></a>`)}
          ${values.map(([name, value]) => html`<span key=${name} class="tag"><bdi>${name}=${value}</bdi></span>`)}
          ${member ? html`<a href=${jobLink(member.array_id)}>array ${member.array_id}</a>` : null}</p>
        <${Again} view=${view} />
        ${job.note ? html`<p class="job-note-text"><bdi>${job.note}</bdi></p>` : null}
        ${state === "running" && view.rights.logs && !spec.array ? html`<${Progress} id=${job.id} />` : null}
      </div>
      <${JobActions} me=${me} view=${view} live=${live} state=${state} label=${label} path=${path} asks=${asks} onAsk=${onAsk} onChange=${onChange} />
    </div>
  `;
}
