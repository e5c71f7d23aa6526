// Who holds memory and does not use it: now, by the queue, and in the period, by the history.
import { address, usePolled } from "../api.js";
import { decimal, heldNow, idleBytes, unusedGibHours, usedShare } from "../figures.js";
import { html } from "../lib.js";
import { Meter } from "../parts/meter.js";
import { none } from "../parts/none.js";
import { jobLink } from "../route.js";
import { percent, size } from "../words.js";

/** @typedef {import("../types.js").QueueRow} QueueRow */
/** @typedef {import("../history-types.js").Group} Group */

const EVERY_MS = 5000;
/** The service gives so many jobs at a time. */
const MOST_ROWS = 500;
const MOST_JOBS = 8;

/** @param {{rows: QueueRow[]}} props */
function IdleJobs({ rows }) {
  const idle = rows.filter((each) => idleBytes(each) > 0).sort((one, other) => idleBytes(other) - idleBytes(one));
  if (!idle.length) return html`<p class="none">No running job holds memory that it does not use, as far as it is known.</p>`;
  return html`
    <h3>Running jobs that use least of what they hold</h3>
    <ul class="idle-jobs">
      ${idle.slice(0, MOST_JOBS).map((each) => {
        const asked = each.mem_bytes * each.gpus;
        const used = /** @type {number} */ (each.used_bytes);
        return html`<li key=${each.id}><a href=${jobLink(each.label)}>${each.label}</a> <bdi>${each.name}</bdi> <small><bdi>${each.user}</bdi></small>
          <span class="uses">uses ${size(used)} of ${size(asked)} <${Meter} share=${used / asked} /></span></li>`;
      })}
      ${idle.length > MOST_JOBS ? html`<li>and ${idle.length - MOST_JOBS} more</li>` : null}
    </ul>
  `;
}

/** @param {{groups: Group[], user: string | undefined}} props groups by user */
export function UnusedMemory({ groups, user }) {
  /** @type {import("../api.js").Polled<import("../types.js").QueueTable>} */
  const { value: table } = usePolled(address("/queue-table", { state: "running", user, sort: "used", limit: MOST_ROWS }), EVERY_MS);
  const rows = table?.rows ?? [];
  const now = heldNow(rows);
  const known = new Map(groups.map((each) => [each.key, each.figures]));
  const users = [...new Set([...known.keys(), ...now.keys()])]
    .map((name) => ({ name, held: now.get(name) ?? null, figures: known.get(name) ?? null }))
    .filter((each) => each.held || each.figures?.runs);
  const unused = (/** @type {typeof users[number]} */ each) => (each.figures ? unusedGibHours(each.figures) : 0);
  users.sort((one, other) => unused(other) - unused(one));
  const most = Math.max(...users.map(unused), 0);
  if (!users.length) return null;
  return html`
    <section class="unused" aria-labelledby="unused-head">
      <h2 id="unused-head">Who holds memory and does not use it</h2>
      <div class="wide"><table class="unused-table">
        <thead><tr><th scope="col">User</th><th scope="col" class="bar-cell" title="In the last samples of running jobs. Jobs that hold a whole device are left out">Now: used of held</th>
          <th scope="col" class="figure">Idle now</th><th scope="col" class="bar-cell">In the period: never used, GiB-hours</th><th scope="col" class="figure">Peak of asked</th></tr></thead>
        <tbody>${users.map((each) => html`
          <tr key=${each.name}>
            <th scope="row"><bdi>${each.name}</bdi></th>
            <td class="bar-cell" data-label="used of held now">${each.held ? html`<${Meter} share=${each.held.used / each.held.asked} /> ${size(each.held.used)}<small> of ${size(each.held.asked)}</small>` : html`<span class="none">nothing held</span>`}</td>
            <td class="figure" data-label="idle now">${each.held ? size(Math.max(0, each.held.asked - each.held.used)) : none()}</td>
            <td class="bar-cell" data-label="never used, GiB-hours"><${Meter} share=${most ? unused(each) / most : 0} kind="warn" /> ${decimal(unused(each))}</td>
            <td class="figure" data-label="peak of asked">${each.figures ? percent(usedShare(each.figures)) : none()}</td>
          </tr>`)}</tbody>
      </table></div>
      ${table ? html`<${IdleJobs} rows=${rows} />` : null}
      ${table && table.total > rows.length ? html`<p class="none">Only ${rows.length} of ${table.total} running jobs are counted.</p>` : null}
    </section>
  `;
}
