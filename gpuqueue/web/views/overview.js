// All devices, host by host, and whether one is free.
import { address, usePolled } from "../api.js";
import { html, useMemo } from "../lib.js";
import { useNow } from "../now.js";
import { Legend, availableOf } from "../parts/memory-bar.js";
import { Trouble } from "../parts/trouble.js";
import { mayOnSite, readsOnly } from "../rights.js";
import { withProgress } from "../room.js";
import { link } from "../route.js";
import { duration, plural, size } from "../words.js";
import { DeviceDrain, HostDrain } from "./device-drain.js";
import { DeviceReserve } from "./device-reserve.js";
import { DeviceRow, FIGURES } from "./device-row.js";
import { IdleHolders } from "./idle-holders.js";
import { RoomQuestion } from "./room-question.js";

const EVERY_MS = 1000;
/** How often the progress of runs is asked for, and of how many. */
const PROGRESS_MS = 5000;
const MOST_RUNS = 500;
/** How often the last hours are asked for. */
const PAST_MS = 60000;

/** How many steps the past of the devices has. @param {import("../types.js").DevicesPast} past */
const stepsOf = (past) => Math.max(0, ...Object.values(past.devices).map((each) => each.used.length));

/** @param {import("../types.js").DeviceView[]} devices */
function byHost(devices) {
  /** @type {Map<string, import("../types.js").DeviceView[]>} */
  const hosts = new Map();
  for (const each of devices) hosts.set(each.host, [...(hosts.get(each.host) ?? []), each]);
  return [...hosts];
}

/** @param {{overview: import("../types.js").Overview}} props */
function Totals({ overview }) {
  const { devices, counts } = overview;
  /** @param {(device: import("../types.js").DeviceView) => number} of */
  const sum = (of) => devices.reduce((all, each) => all + of(each), 0);
  const running = (counts.running ?? 0) + (counts.starting ?? 0) + (counts.cancelling ?? 0);
  const empty = devices.filter((each) => !each.runs.length && !each.drained && each.silent_s === null && !each.trouble).length;
  return html`
    <dl class="totals">
      <div><dt>Empty devices</dt><dd>${empty} <small>of ${devices.length}</small></dd></div>
      <div><dt>Free memory</dt><dd>${size(sum(availableOf))} <small>of ${size(sum((each) => each.total_bytes))}</small></dd></div>
      <div><dt>Used by jobs</dt><dd>${size(sum((each) => each.used_bytes))} <small>of ${size(sum((each) => each.allocated_bytes))} allocated</small></dd></div>
      <div><dt><a href=${link("queue", { state: "running" })}>Running jobs</a></dt><dd>${running.toLocaleString()}</dd></div>
      <div><dt><a href=${link("queue", { state: "queued" })}>Waiting jobs</a></dt><dd>${(counts.queued ?? 0).toLocaleString()}${counts.held ? html` <small>and ${counts.held.toLocaleString()} held</small>` : null}</dd></div>
    </dl>
  `;
}

function Empty() {
  return html`
    <div class="empty">
      <p>No worker serves a device yet. On the machine with the GPUs, type:</p>
      <pre>gpuqueue up</pre>
      <p>Without a GPU, to try it: <code>gpuqueue up --devices sim:2x24G</code></p>
    </div>
  `;
}

/** The devices with the probable ends of their runs. @param {import("../types.js").Overview | null | undefined} overview */
export function useDevices(overview) {
  const devices = overview?.devices ?? [];
  const seen = devices.flatMap((each) => each.runs).filter((each) => each.name !== null);
  const ids = [...new Set(seen.map((each) => each.job_id))].slice(0, MOST_RUNS);
  const url = useMemo(() => (ids.length ? address("/job-progress", { id: ids }) : null), [String(ids)]);
  /** @type {import("../api.js").Polled<Record<number, import("../types.js").Progress>>} */
  const { value } = usePolled(url, PROGRESS_MS);
  return useMemo(() => withProgress(devices, value ?? {}), [overview, value]);
}

/** @param {{me: import("../types.js").Me, query: Record<string, string>}} props */
export function Overview({ me, query }) {
  /** @type {import("../api.js").Polled<import("../types.js").Overview>} */
  const { value, error, again } = usePolled(address("/overview"), EVERY_MS);
  const now = useNow(value?.at ?? null);
  const devices = useDevices(value);
  /** @type {import("../api.js").Polled<import("../types.js").DevicesPast>} */
  const { value: past } = usePolled(value?.devices.length ? address("/device-past") : null, PAST_MS);
  const hosts = useMemo(() => byHost(devices), [devices]);
  if (!value) return html`<${Trouble} error=${error} />${error ? null : html`<p class="loading">Loading the devices…</p>`}`;
  return html`
    <h1 class="hidden">Devices</h1>
    <${Trouble} error=${error} isHistoryAway=${value.history_away} at=${value.at} />
    ${value.devices.length ? html`
      <${RoomQuestion} devices=${devices} asked=${query.mem ?? ""} count=${query.gpus ?? ""} waiting=${value.in_line} maySubmit=${!readsOnly(me)} />
      <${Totals} overview=${value} />
      <${IdleHolders} devices=${value.devices} now=${now} />
      <${Legend} />
      ${past && stepsOf(past) ? html`<p class="note">Below each bar: the last ${duration(past.step_s * stepsOf(past))}, memory used as an area and load as a line.</p>` : null}
      ${hosts.map(([host, devices]) => html`<${Host} key=${host} host=${host} devices=${devices} now=${now} past=${past ?? null} me=${me} onChange=${again} />`)}
    ` : html`<${Empty} />`}
  `;
}

/** @param {{host: string, devices: import("../types.js").DeviceView[], now: number, past: import("../types.js").DevicesPast | null, me: import("../types.js").Me, onChange: () => void}} props */
function Host({ host, devices, now, past, me, onChange }) {
  const [mayDrain, mayReserve] = ["drain", "reserve"].map((action) => mayOnSite(me, action));
  const cards = new Set(devices.map((each) => each.mig_parent ?? each.uuid)).size;
  const silent = devices.every((each) => each.silent_s !== null);
  const refusals = devices.find((each) => each.refusals)?.refusals;
  const figures = FIGURES.filter(({ of }) => devices.some((each) => of(each) !== null)); // a simulated device has none
  return html`
    <section class="host" aria-label=${`Host ${host}`}>
      <h2>${host} <small>${plural(devices.length, "device")}${cards < devices.length ? ` on ${plural(cards, "card")}` : ""}${silent ? html`, <span class="bad-text">silent</span>` : null}</small>${mayDrain && devices.length > 1 ? html`<${HostDrain} host=${host} devices=${devices} onChange=${onChange} />` : null}</h2>
      ${refusals ? html`<p class="banner" role="status">This host could not start several jobs in a row: ${refusals}</p>` : null}
      <div class="wide" tabindex="0" role="region" aria-label=${`Devices of ${host}, scrollable`}>
        <table class="devices" aria-label=${`Devices of ${host}`}>
          <thead><tr>
            <th scope="col" class="device">Device</th><th scope="col" class="memory">Memory</th><th scope="col" class="figure free">Free</th>
            ${figures.map(({ label }) => html`<th key=${label} scope="col" class="figure">${label}</th>`)}
            <th scope="col">Jobs</th><th scope="col" class="state">State</th>
          </tr></thead>
          <tbody>${devices.map((each) => html`<${DeviceRow} key=${each.uuid} device=${each} figures=${figures} now=${now} past=${past} tools=${html`${mayDrain ? html`<${DeviceDrain} device=${each} onChange=${onChange} />` : null}${mayReserve ? html`<${DeviceReserve} device=${each} me=${me} onChange=${onChange} />` : null}`} />`)}</tbody>
        </table>
      </div>
    </section>
  `;
}
