// One job in the table of the history.
import { isActive, isEnd } from "../job-states.js";
import { html } from "../lib.js";
import { Meter } from "../parts/meter.js";
import { none } from "../parts/none.js";
import { allocatedOf, endingOf, labelOf, lastRun, peakOf, placeOf, waitOf } from "../record.js";
import { jobLink, link } from "../route.js";
import { between, clock, duration, fullTime, size } from "../words.js";

/** @typedef {import("../history-types.js").HistoryRow} HistoryRow */
/** @typedef {import("../history-types.js").HistoryRecord} HistoryRecord */

/** @param {{row: HistoryRow}} props */
export function Result({ row }) {
  const { job } = row.record;
  if (row.words) return html`${row.words} <a class="tag" href=${link("history", { array: String(job.id) })}>members</a>`;
  const ending = endingOf(row.record);
  return html`<span class=${`dot ${job.state}`} aria-hidden="true"></span><span class=${["failed", "lost"].includes(job.state) ? "bad-text" : ""}>${job.state}</span>${ending ? html` <small class="ending"><bdi>${ending}</bdi></small>` : null}`;
}

/** @param {{record: HistoryRecord}} props */
export function Memory({ record }) {
  const run = lastRun(record);
  const peak = peakOf(run);
  const { spec } = record.job;
  const asked = spec.placement.whole ? "whole device" : `${size(spec.mem_bytes)}${spec.gpus > 1 ? ` × ${spec.gpus}` : ""}`;
  if (spec.array) return html`<small>${asked} for each member</small>`;
  if (peak === null) {
    const why = !run ? "not started" : isActive(record.job.state) ? "known at its end" : "peak unknown";
    return html`<span class="none">${why}</span><small> of ${asked}</small>`;
  }
  return html`<${Meter} share=${peak / allocatedOf(run)} words=${`peak ${size(peak)} of ${size(allocatedOf(run))} allocated`} /> ${size(peak)}<small> of ${asked}</small>`;
}

/** @param {{record: HistoryRecord}} props */
function When({ record }) {
  const { submitted_at: submitted, started_at: started, ended_at: ended } = record.job;
  const story = [`submitted ${fullTime(submitted)}`, started ? `started ${fullTime(started)}` : "", ended ? `ended ${fullTime(ended)}` : ""].filter(Boolean).join("\n");
  const at = ended ?? started ?? submitted;
  const word = ended ? "" : started ? "started " : "submitted ";
  return html`<time datetime=${at} title=${story}><small>${word}</small>${clock(at)}</time>`;
}

/** @param {{row: HistoryRow, now: number, mayRepeat: boolean}} props `now` in milliseconds */
export function HistoryRowView({ row, now, mayRepeat }) {
  const { record } = row;
  const { job } = record;
  const run = lastRun(record);
  const label = labelOf(job);
  const wait = waitOf(record);
  return html`
    <tr>
      <th scope="row" class="id"><a href=${jobLink(label)}>${label}</a></th>
      <td class="name"><a class="job-name" href=${jobLink(label)}><bdi>${job.spec.name}</bdi></a>
        ${job.tags.map((each) => html` <a key=${each} class="tag" href=${link("history", { tag: each })}><bdi>${each}</bdi></a>`)}
        ${job.note ? html`<small class="job-note"><bdi>${job.note}</bdi></small>` : null}</td>
      <td class="user"><bdi>${job.spec.account.name}</bdi></td>
      <td class="result"><${Result} row=${row} /></td>
      <td class="device">${placeOf(run) || none("no device")}</td>
      <td class="when"><${When} record=${record} /></td>
      <td class="figure" data-label="waited">${wait === null ? none(job.spec.array ? "of each member" : "never started") : duration(wait)}</td>
      <td class="figure" data-label="ran">${run && run.duration_s !== null ? duration(run.duration_s) : job.started_at && isActive(job.state) ? html`${duration(between(job.started_at, now))} <small>so far</small>` : none()}</td>
      <td class="memory"><${Memory} record=${record} /></td>
      <td class="repeat">${mayRepeat && isEnd(job.state) ? html`<a href=${link("submit", { again: label })} aria-label=${`Run again: job ${label}`}>Run again</a>` : null}</td>
    </tr>
  `;
}
