// What a run used of what it asked for: over time, in figures, and in words.
import { html } from "../lib.js";
import { LineChart } from "../parts/line-chart.js";
import { Panel } from "../parts/panel.js";
import { lastRun } from "../record.js";
import { samplesOf } from "../samples.js";
import { stepsOf } from "../timeline.js";
import { deviceLabel, duration, percent, size } from "../words.js";

/** @typedef {import("../job-types.js").JobView} JobView */
/** @typedef {import("../job-types.js").LiveJob} LiveJob */
/** @typedef {import("../job-types.js").Run} Run */
/** @typedef {import("../parts/line-chart.js").Series} Series */

const GIB = 2 ** 30;
const MIB = 2 ** 20;
/** Sources of a peak in words. @type {Record<string, string>} */
const SOURCES = {
  nvml_accounting: "the driver's maximum",
  nvml_sampled: "the largest sample",
  torch: "what torch reserved: at least",
  device_delta: "the growth of the device's use",
  host_rss: "resident memory of its processes",
  simulated: "resident memory of its processes",
  none: "not measured",
};

/** A round number not below a value, for the end of an axis. @param {number} bytes */
function ceiling(bytes) {
  const unit = bytes >= GIB ? GIB : bytes >= MIB ? MIB : 1024;
  const value = bytes / unit;
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1)));
  const step = [1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10].find((each) => each * power >= value) ?? 10;
  return step * power * unit;
}

/** The samples of a run that goes on, by device. @param {Run} run @param {LiveJob} live @param {number} now @param {"used" | "load"} what @returns {Series[]} */
function samplesFor(run, live, now, what) {
  const samples = live.row ? samplesOf(`${live.row.id}:${live.row.attempt}`) : [];
  const start = new Date(run.started_at ?? run.claimed_at).getTime();
  return live.devices.map((device) => {
    /** @type {[number, number | null][]} */
    const points = samples.map((each) => [(each.at - start) / 1000, each[what][device.uuid] ?? null]);
    const last = points[points.length - 1];
    if (last) points.push([Math.max(last[0], (now - start) / 1000), last[1]]);
    return { label: deviceLabel(device), points, isStep: true };
  });
}

/** The past of a run, and behind it what the page has seen since. @param {Series[]} past @param {Series[]} seen @returns {Series[]} */
function after(past, seen) {
  return seen.map((each) => {
    const before = past.find((other) => other.label === each.label)?.points ?? [];
    const end = before.length ? before[before.length - 1][0] : -1;
    return { ...each, points: [...before, ...each.points.filter(([at]) => at > end)] };
  });
}

/** @param {Series[]} series */
const isEmpty = (series) => series.every((each) => each.points.every(([, value]) => value === null));

/** @param {{view: JobView, run: Run, series: Series[]}} props */
function Chart({ view, run, series }) {
  const { spec } = view.record.job;
  const leases = run.devices.map((each) => each.lease_bytes);
  const lease = leases.length ? Math.max(...leases) : spec.mem_bytes;
  const marks = spec.placement.whole ? [{ label: `allocated ${size(lease)}`, value: lease }] : [{ label: view.use, value: spec.mem_bytes }];
  if (!spec.placement.whole && Math.abs(lease - spec.mem_bytes) > spec.mem_bytes / 100) marks.push({ label: `allocated ${size(lease)}`, value: lease });
  const values = series.flatMap((each) => each.points.map(([, value]) => value ?? 0));
  const times = series.flatMap((each) => each.points.map(([at]) => at));
  const most = ceiling(1.08 * Math.max(...values, ...marks.map((each) => each.value)));
  const peak = Math.max(...values);
  return html`<${LineChart} title=${`Memory over time: at most ${size(peak)} of ${size(spec.mem_bytes)} asked for`} series=${series} marks=${marks}
    most=${most} from=${Math.max(0, Math.min(...times))} to=${Math.max(...times)} height=${190} words=${size} timeWords=${duration} />`;
}

/** @param {{run: Run, live: LiveJob | null}} props */
function Figures({ run, live }) {
  const used = new Map((live?.devices ?? []).map((each) => [each.uuid, each]));
  return html`
    <div class="wide" tabindex="0" role="region" aria-label="Devices of the run, scrollable"><table class="figures" aria-label="Devices of the run">
      <thead><tr><th scope="col">Device</th><th scope="col">Allocated</th><th scope="col">${live ? "Used now" : "Peak"}</th><th scope="col">${live ? "Load now" : "Load"}</th><th scope="col">Temp.</th></tr></thead>
      <tbody>${run.devices.map((each) => {
        const now = used.get(each.uuid);
        const { activity, peak } = each;
        const load = activity.utilisation_mean === null ? "–" : `${percent(activity.utilisation_mean)}, at most ${percent(activity.utilisation_max)}`;
        const heat = live ? (now?.temperature_c ?? null) : activity.temperature_max_c;
        return html`<tr>
          <th scope="row">${deviceLabel(each)} <small><bdi>${each.name ?? each.uuid}</bdi></small></th>
          <td>${size(each.lease_bytes)}</td>
          <td>${live ? (now && !now.silent ? size(now.used_bytes) : "unknown") : html`${size(peak.bytes)} <small title=${`${peak.samples} samples`}>${SOURCES[peak.source] ?? peak.source}</small>`}</td>
          <td>${live ? percent(now?.utilisation ?? null, "–") : load}</td>
          <td>${heat === null ? "–" : `${live ? "" : "at most "}${Math.round(heat)} °C`}</td>
        </tr>`;
      })}</tbody>
    </table></div>
  `;
}

/** @param {{view: JobView, run: Run, live: LiveJob | null, now: number}} props */
export function Memory({ view, run, live, now }) {
  const measured = run.devices.filter((each) => each.timeline);
  const isLive = live !== null;
  const past = measured.map((each) => ({ label: deviceLabel(each), points: stepsOf(each, run.duration_s), isStep: true }));
  const series = isLive ? after(past, samplesFor(run, live, now, "used")) : past;
  const load = isLive ? samplesFor(run, live, now, "load") : [];
  const isLast = run === lastRun(view.record);
  const missing = isLive ? "No sample yet." : "There is no course of the memory: the run was too short, or it was not measured.";
  return html`
    <${Panel} name="memory" title="Memory">
      ${view.verdict && isLast && run.ending ? html`<p class="verdict">${view.verdict[0].toUpperCase()}${view.verdict.slice(1)}.</p>` : null}
      ${series.length && !isEmpty(series) ? html`<${Chart} view=${view} run=${run} series=${series} />` : html`<p class="none">${missing}</p>`}
      ${load.length && !isEmpty(load) ? html`
        <h3>Load of the whole device</h3>
        <${LineChart} title="Utilisation over time" series=${load} marks=${[]} most=${1} from=${Math.max(0, Math.min(...load.flatMap((each) => each.points.map(([at]) => at))))}
          to=${Math.max(...load.flatMap((each) => each.points.map(([at]) => at)))} height=${110} words=${percent} timeWords=${duration} />` : null}
      ${load.length && !isEmpty(load) ? html`<p><small>The load is shown since this page was opened.</small></p>` : null}
      <${Figures} run=${run} live=${isLive ? live : null} />
    <//>
  `;
}
