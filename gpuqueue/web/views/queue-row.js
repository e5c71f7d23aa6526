// One job in the table of the queue.
import { html } from "../lib.js";
import { jobLink, link } from "../route.js";
import { between, clock, duration, fullTime, placeOf, reasonOf, size } from "../words.js";

/** @typedef {import("../types.js").QueueRow} QueueRow */

/** @param {{row: QueueRow}} props */
export function Memory({ row }) {
  const asked = row.whole ? "whole device" : size(row.mem_bytes);
  const many = row.gpus > 1 ? html`<small> × ${row.gpus}</small>` : null;
  const asksInAll = row.mem_bytes * row.gpus;
  if (row.used_bytes === null) return html`${asked}${many}`;
  const isOver = !row.whole && row.used_bytes > asksInAll;
  return html`<span class=${isOver ? "warn-text" : ""} title=${`uses ${size(row.used_bytes)} of ${size(asksInAll)}`}>${size(row.used_bytes)}</span><small> of </small>${asked}${many}`;
}

/** @param {{progress: import("../types.js").Progress}} props */
export function ProgressBar({ progress }) {
  const share = Math.floor(progress.share * 100);
  return html`<span class="progress" role="progressbar" aria-valuenow=${share} aria-valuemin="0" aria-valuemax="100" aria-label=${progress.words}>
    <i style=${{ width: `${share}%` }}></i></span> <small><bdi>${progress.words}</bdi></small>`;
}

/** @param {{row: QueueRow, now: number, progress?: import("../types.js").Progress}} props */
function Running({ row, now, progress }) {
  if (row.members) return row.members.words;
  const ran = row.started_at ? duration((now - new Date(row.started_at).getTime()) / 1000) : "";
  const limit = row.time_limit_s ? ` of ${duration(row.time_limit_s)}` : "";
  const marks = row.marks.map((each) => html`<span key=${each.kind} class="warn-text" title=${each.words}>${each.brief} for ${duration(between(each.since, now))}</span><small> · </small>`);
  return html`${marks}${ran}${limit}${row.where ? html`<small class="on-host"> on ${row.where}</small>` : null}${progress ? html`<${ProgressBar} progress=${progress} />` : null}`;
}

/** @param {{row: QueueRow, now: number, place?: import("../types.js").JobPlace, progress?: import("../types.js").Progress}} props */
export function Story({ row, now, place, progress }) {
  if (row.state === "cancelling") return html`its processes are being ended`;
  if (row.state === "running" || row.state === "starting") return html`<${Running} row=${row} now=${now} progress=${progress} />`;
  const members = row.members ? html`<small> · ${row.members.words}</small>` : null;
  const reason = reasonOf(row);
  const first = row.state === "queued" && place ? html`<strong>${placeOf(place)}</strong>${members}${row.reason === "memory" ? null : html`<small> · ${reason}</small>`}` : html`${reason}${members}`;
  return html`<span title=${reason}>${first}</span>`;
}

/** @param {{row: QueueRow}} props */
function Name({ row }) {
  return html`<a class="job-name" href=${jobLink(row.label)}><bdi>${row.name}</bdi></a>
    ${row.tags.map((each) => html`<a key=${each} class="tag" href=${link("queue", { tag: each })}><bdi>${each}</bdi></a>`)}
    ${row.note ? html`<small class="job-note"><bdi>${row.note}</bdi></small>` : null}`;
}

/** @param {{place: number}} props */
export function SkeletonRow({ place }) {
  return html`<tr class="job" aria-rowindex=${place + 2}><td class="pick"></td><td colspan="8" class="none">…</td></tr>`;
}

/**
 * @param {object} props
 * @param {QueueRow} props.row
 * @param {number} props.place
 * @param {number} props.now the time of the service, in milliseconds
 * @param {boolean} props.may
 * @param {boolean} props.isSelected
 * @param {boolean} props.isFocused
 * @param {import("../types.js").JobPlace} [props.jobPlace]
 * @param {import("../types.js").Progress} [props.progress]
 * @param {(place: number, isRange: boolean) => void} props.onToggle
 */
export function QueueRowView({ row, place, now, may, isSelected, isFocused, jobPlace, progress, onToggle }) {
  const priority = row.priority === row.asked_priority ? row.priority : html`${row.priority} <small title=${`asked for ${row.asked_priority}; promoted because it has waited long`}>↑</small>`;
  return html`
    <tr class=${`job ${isSelected ? "selected" : ""} ${isFocused ? "focused" : ""}`} aria-rowindex=${place + 2}>
      <td class="pick"><input type="checkbox" checked=${isSelected} disabled=${!may} aria-label=${`Select job ${row.label}`}
        title=${may ? "" : `You may not change this job of ${row.user}`}
        onClick=${(/** @type {MouseEvent} */ event) => onToggle(place, event.shiftKey)} /></td>
      <th scope="row" class="id"><a href=${jobLink(row.label)}>${row.label}</a></th>
      <td class="name" title=${row.name}><${Name} row=${row} /></td>
      <td class="user"><bdi>${row.user}</bdi></td>
      <td class="state"><span class=${`dot ${row.state}`} aria-hidden="true"></span>${row.state}</td>
      <td class="mem"><${Memory} row=${row} /></td>
      <td class="priority">${priority}</td>
      <td class="time"><time datetime=${row.submitted_at} title=${fullTime(row.submitted_at)}>${clock(row.submitted_at)}</time></td>
      <td class="story"><span><${Story} row=${row} now=${now} place=${jobPlace} progress=${progress} /></span></td>
    </tr>
  `;
}
