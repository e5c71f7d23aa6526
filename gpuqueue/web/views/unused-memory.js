// Who holds memory and does not use it: now, by the queue, and in the period, by the history.
import { address, usePolled } from "../api.js";
import { decimal, heldNow, unusedBytes, unusedGibHours, usedShare } from "../figures.js";
import { html } from "../lib.js";
import { useNow } from "../now.js";
import { Meter } from "../parts/meter.js";
import { none } from "../parts/none.js";
import { jobLink } from "../route.js";
import { idleWords, percent, plural, size } from "../words.js";

/** @typedef {import("../types.js").QueueRow} QueueRow */
/** @typedef {import("../history-types.js").Group} Group */

const EVERY_MS = 5000;
/** The service gives so many jobs at a time. */
const MOST_ROWS = 500;
const MOST_JOBS = 8;

/** What a running job uses of what it holds. @param {{row: QueueRow}} props */
function Use({ row }) {
  const { used_bytes: used } = row;
  const asked = row.mem_bytes * row.gpus;
  const held = row.whole ? plural(row.gpus, "whole device") : size(asked);
  if (used === null) return html`holds ${held}`;
  return html`uses ${size(used)} of ${held} ${row.whole ? null : html`<${Meter} share=${used / asked} />`}`;
}

/** @param {{rows: QueueRow[], now: number}} props those that are marked as idle come first */
function HoldingJobs({ rows, now }) {
  /** @param {QueueRow} one @param {QueueRow} other */
  const order = (one, other) => Number(Boolean(other.idle_since)) - Number(Boolean(one.idle_since)) || unusedBytes(other) - unusedBytes(one);
  const all = rows.filter((each) => each.idle_since || unusedBytes(each) > 0).sort(order);
  if (!all.length) return html`<p class="none">No running job holds memory that it does not use, as far as it is known.</p>`;
  return html`
    <h3>Running jobs that use least of what they hold</h3>
    <ul class="holding-jobs">
      ${all.slice(0, MOST_JOBS).map((each) => html`
        <li key=${each.id}><a href=${jobLink(each.label)}>${each.label}</a> <bdi>${each.name}</bdi> <small><bdi>${each.user}</bdi></small>
          ${each.idle_since ? html`<span class="warn-text" title="It uses none of its devices">${idleWords(each.idle_since, now)}</span>` : null}
          <span class="uses"><${Use} row=${each} /></span></li>`)}
      ${all.length > MOST_JOBS ? html`<li>and ${all.length - MOST_JOBS} more</li>` : null}
    </ul>
  `;
}

/** @param {{groups: Group[], user: string | undefined}} props groups by user */
export function UnusedMemory({ groups, user }) {
  /** @type {import("../api.js").Polled<import("../types.js").QueueTable>} */
  const { value: table } = usePolled(address("/queue-table", { state: "running", user, sort: "used", limit: MOST_ROWS }), EVERY_MS);
  const now = useNow(table?.at ?? null);
  const rows = table?.rows ?? [];
  const held = heldNow(rows);
  const known = new Map(groups.map((each) => [each.key, each.figures]));
  const users = [...new Set([...known.keys(), ...held.keys()])]
    .map((name) => ({ name, held: held.get(name) ?? null, figures: known.get(name) ?? null }))
    .filter((each) => each.held || each.figures?.runs);
  const unused = (/** @type {typeof users[number]} */ each) => (each.figures ? unusedGibHours(each.figures) : 0);
  users.sort((one, other) => unused(other) - unused(one));
  const most = Math.max(...users.map(unused), 0);
  if (!users.length) return null;
  return html`
    <section class="unused" aria-labelledby="unused-head">
      <h2 id="unused-head">Who holds memory and does not use it</h2>
      <div class="wide" tabindex="0" role="region" aria-label="Unused memory, scrollable"><table class="unused-table" aria-label="Unused memory">
        <thead><tr><th scope="col">User</th><th scope="col" class="bar-cell" title="In the last samples of running jobs. Jobs that hold a whole device are left out">Now: used of held</th>
          <th scope="col" class="figure">Unused now</th><th scope="col" class="bar-cell">In the period: never used, GiB-hours</th><th scope="col" class="figure">Peak of asked</th></tr></thead>
        <tbody>${users.map((each) => html`
          <tr key=${each.name}>
            <th scope="row"><bdi>${each.name}</bdi></th>
            <td class="bar-cell" data-label="used of held now">${each.held ? html`<${Meter} share=${each.held.used / each.held.asked} /> ${size(each.held.used)}<small> of ${size(each.held.asked)}</small>` : table ? html`<span class="none">nothing held</span>` : none()}</td>
            <td class="figure" data-label="unused now">${each.held ? size(Math.max(0, each.held.asked - each.held.used)) : none()}</td>
            <td class="bar-cell" data-label="never used, GiB-hours"><${Meter} share=${most ? unused(each) / most : 0} kind="warn" /> ${decimal(unused(each))}</td>
            <td class="figure" data-label="peak of asked">${each.figures ? percent(usedShare(each.figures)) : none()}</td>
          </tr>`)}</tbody>
      </table></div>
      ${table ? html`<${HoldingJobs} rows=${rows} now=${now} />` : null}
      ${table && table.total > rows.length ? html`<p class="none">Only ${rows.length} of ${table.total} running jobs are counted.</p>` : null}
    </section>
  `;
}
