// One device: its memory, its figures, its jobs, and what is wrong with it.
import { html } from "../lib.js";
import { MemoryBar, availableOf } from "../parts/memory-bar.js";
import { none } from "../parts/none.js";
import { Sparkline } from "../parts/sparkline.js";
import { emptyAt } from "../room.js";
import { jobLink } from "../route.js";
import { between, clock, deviceLabel, duration, fullTime, idleWords, percent, plural, size } from "../words.js";

/** From this temperature on a device is marked as hot, in degrees Celsius. */
export const HOT_C = 85;
const MOST_RUNS = 6;

/** @param {{run: import("../types.js").DeviceRun, now: number}} props */
function Run({ run, now }) {
  const memory = `${size(run.used_bytes)} of ${size(run.allocated_bytes)}`;
  if (run.name === null) return html`<li>a job <small>${memory}</small></li>`;
  return html`<li><a href=${jobLink(run.label ?? run.job_id)}>${run.label}</a> <bdi>${run.name}</bdi> <small><bdi>${run.user}</bdi>, ${memory}</small>${run.idle_since ? html` <span class="warn-text">${idleWords(run.idle_since, now)}</span>` : null}</li>`;
}

/** @param {import("../types.js").ExternalUse} use */
const ownerOf = ({ user, job_id: id, label }) => (id === null
  ? html`<bdi>${user ?? "somebody"}</bdi>, outside of the queue`
  : html`job <a href=${jobLink(label ?? id)}>${label ?? id}</a> <span class="warn-text">which was given another device</span>`);

/** @param {{device: import("../types.js").DeviceView, now: number}} props */
function Runs({ device, now }) {
  const { runs, external } = device;
  return html`
    <ul class="runs">
      ${runs.slice(0, MOST_RUNS).map((each) => html`<${Run} key=${each.job_id} run=${each} now=${now} />`)}
      ${runs.length > MOST_RUNS ? html`<li>and ${plural(runs.length - MOST_RUNS, "more job")}</li>` : null}
      ${external.map((each) => html`
        <li class="external-use" title=${each.commands.join("\n")}>${ownerOf(each)}: <small>${each.held_bytes === null ? "memory unknown" : size(each.held_bytes)} in ${plural(each.processes, "process", "processes")}</small></li>`)}
    </ul>
  `;
}

/** The users of a reservation, its times, and why. @param {import("../types.js").CalendarReservation} reservation */
export const spanWords = ({ users, begins_at: from, ends_at: until, why }) => `for ${users.join(" and ")} from ${clock(from)} until ${clock(until)}${why ? `: ${why}` : ""}`;

/** @param {{device: import("../types.js").DeviceView, now: number}} props */
function State({ device, now }) {
  const { silent_s: silent, trouble, drained, errors, ends_at: endsAt, end_reason: endReason, reserved_for: reserved } = device;
  const { reserved_until: until, runs } = device;
  const words = [];
  if (silent !== null) words.push(html`<span class="bad-text">no heartbeat for ${duration(silent)}</span>`);
  if (trouble) words.push(html`<span class="bad-text">${trouble}</span>`);
  words.push(...errors.map((each) => html`<span class="warn-text">${each}</span>`));
  if (drained) words.push(html`<span class="warn-text">drained: <bdi>${drained}</bdi></span>`);
  if (endsAt && !drained) words.push(html`<span class="warn-text" title=${`It takes only jobs that are over by ${fullTime(endsAt)}`}>ends at ${clock(endsAt)} <small>(${duration((new Date(endsAt).getTime() - now) / 1000)})</small>${endReason ? html`: <bdi>${endReason}</bdi>` : null}</span>`);
  if (device.calendar_words) words.push(html`<span class="warn-text" title=${device.calendar.map(spanWords).join("\n")}><bdi>${device.calendar_words}</bdi></span>`);
  if ((device.temperature_c ?? 0) >= HOT_C) words.push(html`<span class="warn-text">hot</span>`);
  if (reserved) words.push(html`<span>reserved for job <a href=${jobLink(reserved)}>${reserved}</a>${until ? html`, <span title=${fullTime(until)}>until ${clock(until)}</span>` : null}</span>`);
  if (device.exclusive) words.push(html`<span>taken as a whole</span>`);
  if (runs.length >= device.slots) words.push(html`<span>all ${device.slots} slots in use</span>`);
  if (!words.length && !runs.length) words.push(html`<span class="good-text">empty</span>`);
  const empty = emptyAt(device);
  if (empty?.isProbable) {
    words.push(html`<span title="By the progress of its jobs">empty at about ${clock(empty.at)}</span>`);
  } else if (empty) {
    words.push(html`<span title=${`By the time limits of its jobs: ${fullTime(empty.at)}`}>empty by ${clock(empty.at)} <small>(${duration(between(new Date(now).toISOString(), empty.at))})</small></span>`);
  } else if (runs.length && runs.every((each) => each.name !== null)) {
    words.push(html`<small title="A job without a time limit runs here">end not known</small>`);
  }
  return html`<ul class="states">${words.map((each, place) => html`<li key=${place}>${each}</li>`)}</ul>`;
}

/** @typedef {{label: string, name: string, of: (device: import("../types.js").DeviceView) => number | null, words: (value: number) => string}} Figure */

/** What is measured on a device. @type {Figure[]} */
export const FIGURES = [
  { label: "Load", name: "load", of: (each) => each.utilisation, words: (value) => percent(value) },
  { label: "Temp.", name: "temperature", of: (each) => each.temperature_c, words: (value) => `${Math.round(value)} °C` },
  { label: "Power", name: "power", of: (each) => each.power_w, words: (value) => `${Math.round(value)} W` },
];

/**
 * @param {object} props
 * @param {import("../types.js").DeviceView} props.device
 * @param {Figure[]} props.figures
 * @param {number} props.now
 * @param {import("../types.js").DevicesPast | null} [props.past] none: none is shown
 * @param {any} [props.tools]
 */
export function DeviceRow({ device, figures, now, past, tools }) {
  const isAway = device.silent_s !== null || Boolean(device.trouble);
  const before = past?.devices[device.uuid];
  return html`
    <tr class=${isAway ? "away" : ""}>
      <th scope="row">${deviceLabel(device)} <small class="sub">${device.name}${device.pool ? `, pool ${device.pool}` : ""}</small></th>
      <td class="memory"><${MemoryBar} device=${device} />${before ? html`<${Sparkline} past=${before} stepS=${past?.step_s ?? 0} />` : null}</td>
      <td class="figure free" data-label="free" title=${device.closed ?? ""}>${size(availableOf(device))} <small>of ${size(device.total_bytes)}</small></td>
      ${figures.map(({ name, of, words }) => {
        const value = of(device);
        return html`<td key=${name} class="figure" data-label=${name}>${value === null ? none() : words(value)}</td>`;
      })}
      <td class="jobs"><${Runs} device=${device} now=${now} /></td>
      <td class="state"><${State} device=${device} now=${now} />${tools}</td>
    </tr>
  `;
}
