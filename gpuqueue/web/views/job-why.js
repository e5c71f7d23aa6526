// Why a job waits: when it may start, what is before it, and what is in the way on the devices.
import { address, usePolled } from "../api.js";
import { html } from "../lib.js";
import { Panel } from "../parts/panel.js";
import { MOST_BEFORE, needWords, ownBefore } from "../need-words.js";
import { jobLink, link } from "../route.js";
import { plural, reasonOf, size } from "../words.js";
import { linkedParts, placeName, whyWords } from "../why-words.js";

const EVERY_MS = 5000;
/** Waiting jobs of a user that are read to name those before one. */
const MOST_READ = 200;

/** @typedef {import("../job-types.js").Why} Why */

/** @param {{why: Why, runs: import("../job-types.js").Occupant[]}} props */
function InTheWay({ why, runs }) {
  if (!runs.length) return null;
  return html`${runs.slice(0, 4).map((each, place) => html`${place ? ", " : ""}<a href=${jobLink(each.job_id)}>${each.job_id}</a> <small><bdi>${why.others[each.job_id]?.spec.name ?? ""}</bdi> ${size(each.held_bytes)}${each.going ? ", ending" : why.others[each.job_id]?.idle_since ? ", idle" : ""}</small>`)}${runs.length > 4 ? html` <small>and ${plural(runs.length - 4, "more job")}</small>` : null}`;
}

/** A sentence whose jobs are links. @param {{why: Why, text: string}} props */
const Linked = ({ why, text }) => linkedParts(why, text).map((each) => (each.job ? html`<a href=${jobLink(each.job)}>${each.words}</a>` : each.words));

/** Where the jobs before it are listed. @param {Why} why */
function queueBefore({ explanation, job }) {
  const { higher = 0, theirs = 0, own_before: own = 0 } = explanation ?? {};
  if (!higher && !theirs && !own) return null;
  return html` <a href=${link("queue", { state: "queued", user: higher || theirs ? null : job.spec.account.name })}>Show the waiting jobs</a>`;
}

/** The jobs of its user before a job by their names. @param {{row: import("../types.js").QueueRow, count: number}} props */
function OwnBefore({ row, count }) {
  /** @type {import("../api.js").Polled<import("../types.js").QueueTable>} */
  const { value } = usePolled(count <= MOST_BEFORE ? address("/queue-table", { user: row.user, state: "queued", limit: MOST_READ }) : null, EVERY_MS);
  const found = ownBefore(value?.rows ?? [], row, count);
  return found.length ? html` <small>${found.map((each, place) => html`${place ? ", " : ""}<a key=${each.id} href=${jobLink(each.label)}>${each.label}</a> <bdi>${each.name}</bdi>`)}</small>` : null;
}

/** @param {{path: string, row: import("../types.js").QueueRow | null}} props */
export function Why({ path, row }) {
  /** @type {import("../api.js").Polled<Why>} */
  const { value: why } = usePolled(address(`${path}/why`), EVERY_MS);
  if (!why?.explanation) return null;
  const words = whyWords(why);
  const need = needWords(why) ?? (row ? reasonOf(row) : "");
  return html`
    <${Panel} name="why" title="Why it waits">
      ${need ? html`<p class="need"><bdi>${need}</bdi></p>` : null}
      <h3>When it may start</h3>
      <ul class="reasons">${words.start.map((each) => html`<li key=${each}><bdi><${Linked} why=${why} text=${each} /></bdi></li>`)}</ul>
      <h3>The order</h3>
      <p>${words.order}${row && why.explanation.own_before ? html`<${OwnBefore} row=${row} count=${why.explanation.own_before} />` : null}${queueBefore(why)}</p>
      ${words.limits.map((each) => html`<p key=${each} class="warn-text"><bdi>${each}</bdi></p>`)}
      ${words.devices.length ? html`
        <h3>The devices, the nearest to a start first</h3>
        <div class="wide"><table class="figures stacked">
          <thead><tr><th scope="col">Device</th><th scope="col">Free for it</th><th scope="col">State</th><th scope="col">Jobs there</th></tr></thead>
          <tbody>${words.devices.map((each) => html`<tr key=${each.device}>
            <th scope="row">${placeName(why, each.device, each.host)}</th>
            <td data-label="Free for it">${size(Math.max(0, each.available_bytes))}</td>
            <td data-label="State"><bdi>${each.words}</bdi>${each.holder ? html` <a href=${jobLink(each.holder)}>${each.holder}</a>` : null}</td>
            <td data-label="Jobs there"><${InTheWay} why=${why} runs=${each.runs} /></td>
          </tr>`)}</tbody>
        </table></div>
        ${words.left ? html`<p class="none">and ${plural(words.left, "other device")}, which are further from it</p>` : null}` : null}
    <//>
  `;
}
