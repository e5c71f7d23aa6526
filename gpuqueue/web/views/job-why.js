// Why a job waits: when it may start, what is before it, and what is in the way on the devices.
import { address, usePolled } from "../api.js";
import { NO_TURN } from "../job-states.js";
import { html } from "../lib.js";
import { Panel } from "../parts/panel.js";
import { jobLink, link } from "../route.js";
import { MOST_BEFORE, ownBefore, plural, size } from "../words.js";

const EVERY_MS = 5000;
/** Waiting jobs of a user that are read to name those before one. */
const MOST_READ = 200;
/** A job in a sentence of the service. */
const JOB = /\b(job (\d+(?:_\d+)?))\b/;

/** @typedef {import("../job-types.js").Why} Why */
/** @typedef {import("../types.js").QueueRow} QueueRow */

/** A sentence in parts: text, "job 7_2", its label "7_2", text, and so on. @param {string} text */
const partsOf = (text) => text.split(JOB);

/** A sentence whose jobs are links. @param {{text: string}} props */
const Linked = ({ text }) => html`<bdi>${partsOf(text).map((words, place, all) => (place % 3 === 0 ? words : place % 3 === 1 ? html`<a href=${jobLink(all[place + 1])}>${words}</a>` : null))}</bdi>`;

/** @param {{why: Why, uuid: string}} props */
function InTheWay({ why, uuid }) {
  const runs = why.explanation?.devices.find((each) => each.device === uuid)?.runs ?? [];
  if (!runs.length) return null;
  return html`${runs.slice(0, 4).map((each, place) => html`${place ? ", " : ""}<a href=${jobLink(each.job_id)}>${each.job_id}</a> <small><bdi>${why.others[each.job_id]?.spec.name ?? ""}</bdi> ${size(each.held_bytes)}${each.going ? ", ending" : why.others[each.job_id]?.idle_since ? ", idle" : ""}</small>`)}${runs.length > 4 ? html` <small>and ${plural(runs.length - 4, "more job")}</small>` : null}`;
}

/** Where the jobs before it are listed. @param {Why} why */
function queueBefore({ explanation, job }) {
  const { higher = 0, theirs = 0, own_before: own = 0 } = explanation ?? {};
  if (!higher && !theirs && !own) return null;
  return html` <a href=${link("queue", { state: "queued", user: higher || theirs ? null : job.spec.account.name })}>Show the waiting jobs</a>`;
}

/** The jobs of its user before a job by their names. @param {{row: QueueRow, count: number}} props */
function OwnBefore({ row, count }) {
  /** @type {import("../api.js").Polled<import("../types.js").QueueTable>} */
  const { value } = usePolled(count <= MOST_BEFORE ? address("/queue-table", { user: row.user, state: "queued", limit: MOST_READ }) : null, EVERY_MS);
  const found = ownBefore(value?.rows ?? [], row, count);
  return found.length ? html` <small>${found.map((each, place) => html`${place ? ", " : ""}<a key=${each.id} href=${jobLink(each.label)}>${each.label}</a> <bdi>${each.name}</bdi>`)}</small>` : null;
}

/** @param {{path: string, row: QueueRow | null}} props */
export function Why({ path, row }) {
  /** @type {import("../api.js").Polled<Why>} */
  const { value: why } = usePolled(address(`${path}/why`, { utc_offset_min: -new Date().getTimezoneOffset() }), EVERY_MS);
  const words = why?.sentences;
  if (!why?.explanation || !words) return null;
  const devices = NO_TURN.has(row?.reason ?? "") ? [] : words.devices; // they may well be free
  return html`
    <${Panel} name="why" title=${row?.members?.running ? "Why the other members wait" : "Why it waits"}>
      <p class="need"><bdi>${words.asked}</bdi></p>
      <h3>When it may start</h3>
      <ul class="reasons">${words.start.map((each) => html`<li key=${each}><${Linked} text=${each} /></li>`)}</ul>
      ${words.obstacles.map((each) => html`<p key=${each} class="warn-text"><${Linked} text=${each} /></p>`)}
      <h3>The order</h3>
      <p>${words.order}${row && why.explanation.own_before ? html`<${OwnBefore} row=${row} count=${why.explanation.own_before} />` : null}${queueBefore(why)}</p>
      ${devices.length ? html`
        <h3>The devices, the nearest to a start first</h3>
        <div class="wide" tabindex="0" role="region" aria-label="Devices, scrollable"><table class="figures stacked" aria-label="Devices">
          <thead><tr><th scope="col">Device</th><th scope="col">Can give</th><th scope="col">Why not there</th><th scope="col">Jobs there</th></tr></thead>
          <tbody>${devices.map((each) => html`<tr key=${each.uuid}>
            <th scope="row">${each.label}</th>
            <td data-label="Can give">${size(each.available_bytes)} of ${size(each.total_bytes)}</td>
            <td data-label="Why not there"><${Linked} text=${each.why_not} /></td>
            <td data-label="Jobs there"><${InTheWay} why=${why} uuid=${each.uuid} /></td>
          </tr>`)}</tbody>
        </table></div>
        ${words.rest.map((each) => html`<p key=${each} class="none"><bdi>${each}</bdi></p>`)}` : null}
    <//>
  `;
}
