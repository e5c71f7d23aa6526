// Why a job waits: when it may start, what is before it, and what is in the way on the devices.
import { address, usePolled } from "../api.js";
import { html } from "../lib.js";
import { Panel } from "../parts/panel.js";
import { jobLink } from "../route.js";
import { plural, size } from "../words.js";
import { linkedParts, placeName, whyWords } from "../why-words.js";

const EVERY_MS = 5000;

/** @typedef {import("../job-types.js").Why} Why */

/** @param {{why: Why, runs: import("../job-types.js").Occupant[]}} props */
function InTheWay({ why, runs }) {
  if (!runs.length) return null;
  return html`${runs.slice(0, 4).map((each, place) => html`${place ? ", " : ""}<a href=${jobLink(each.job_id)}>${each.job_id}</a> <small><bdi>${why.others[each.job_id]?.spec.name ?? ""}</bdi> ${size(each.held_bytes)}${each.going ? ", ending" : why.others[each.job_id]?.idle_since ? ", idle" : ""}</small>`)}${runs.length > 4 ? html` <small>and ${plural(runs.length - 4, "more job")}</small>` : null}`;
}

/** A sentence whose jobs are links. @param {{why: Why, text: string}} props */
const Linked = ({ why, text }) => linkedParts(why, text).map((each) => (each.job ? html`<a href=${jobLink(each.job)}>${each.words}</a>` : each.words));

/** @param {{path: string}} props */
export function Why({ path }) {
  /** @type {import("../api.js").Polled<Why>} */
  const { value: why } = usePolled(address(`${path}/why`), EVERY_MS);
  if (!why?.explanation) return null;
  const words = whyWords(why);
  return html`
    <${Panel} name="why" title="Why it waits">
      <h3>When it may start</h3>
      <ul class="reasons">${words.start.map((each) => html`<li key=${each}><bdi><${Linked} why=${why} text=${each} /></bdi></li>`)}</ul>
      <h3>The order</h3>
      <p>${words.order}</p>
      ${words.limits.map((each) => html`<p key=${each} class="warn-text"><bdi>${each}</bdi></p>`)}
      ${words.devices.length ? html`
        <h3>The devices, the nearest to a start first</h3>
        <div class="wide"><table class="figures">
          <thead><tr><th scope="col">Device</th><th scope="col">Free for it</th><th scope="col">State</th><th scope="col">Jobs there</th></tr></thead>
          <tbody>${words.devices.map((each) => html`<tr key=${each.device}>
            <th scope="row">${placeName(why, each.device, each.host)}</th>
            <td>${size(Math.max(0, each.available_bytes))}</td>
            <td><bdi>${each.words}</bdi>${each.holder ? html` <a href=${jobLink(each.holder)}>${each.holder}</a>` : null}</td>
            <td><${InTheWay} why=${why} runs=${each.runs} /></td>
          </tr>`)}</tbody>
        </table></div>
        ${words.left ? html`<p class="none">and ${plural(words.left, "other device")}, which are further from it</p>` : null}` : null}
    <//>
  `;
}
