// The table of statistics: a row for each user, device, host or day, with bars beside the numbers.
import { askedBytes, decimal, deviceS, failedOf, hours, measuredAskedBytes, peakBytes, shareOf, unusedGibHours, usedShare } from "../figures.js";
import { html } from "../lib.js";
import { dayLabel } from "../parts/day-chart.js";
import { Meter } from "../parts/meter.js";
import { none } from "../parts/none.js";
import { link } from "../route.js";
import { duration, percent, size } from "../words.js";

/** @typedef {import("../history-types.js").Figures} Figures */
/** @typedef {import("../history-types.js").Group} Group */
/** @typedef {import("../history-types.js").Statistics} Statistics */

const HEADS = /** @type {Record<string, string>} */ ({ user: "User", device: "Device", host: "Host", day: "Day" });
/** The filter of the history that finds the jobs of a group. A day of the service may be another one here. */
const FILTERS = /** @type {Record<string, string>} */ ({ user: "user", device: "device", host: "host" });

/** @param {number | null} seconds */
const time = (seconds) => (seconds === null ? none() : duration(seconds));

/** @param {{figures: Figures}} props */
function Memory({ figures }) {
  const asked = askedBytes(figures);
  const peak = peakBytes(figures);
  if (asked === null) return html`<span class="none">no runs</span>`;
  if (peak === null) return html`<span class="none">peak unknown</span><small> of ${size(Math.round(asked))}</small>`;
  return html`<${Meter} share=${usedShare(figures) ?? 0} /> ${size(Math.round(peak))}<small> of ${size(Math.round(measuredAskedBytes(figures) ?? 0))}</small> <span class="share">${percent(usedShare(figures))}</span>`;
}

/** @param {{figures: Figures, to: string | null}} props */
function Failures({ figures, to }) {
  const failed = failedOf(figures);
  const share = shareOf(failed, figures.ended);
  if (share === null) return html`<span class="none">none ended</span>`;
  const words = `${failed.toLocaleString()} of ${figures.ended.toLocaleString()}`;
  return html`<${Meter} share=${share} kind="bad" /> ${to && failed ? html`<a href=${to}>${words}</a>` : words} <span class="share">${percent(share)}</span>`;
}

/** @param {{figures: Figures, most: number}} props */
function Hours({ figures, most }) {
  const cpu = figures.cpu_s ? html`<small> and ${hours(figures.cpu_s)} CPU</small>` : null;
  return html`<${Meter} share=${shareOf(deviceS(figures), most) ?? 0} /> ${hours(figures.gpu_s)}${cpu}`;
}

/**
 * @param {object} props
 * @param {string} props.by
 * @param {Group} props.group
 * @param {number} props.most the most time of a group
 * @param {Record<string, string>} props.query
 */
function Row({ by, group, most, query }) {
  const { figures } = group;
  const filters = FILTERS[by] ? { [FILTERS[by]]: group.key, since: query.since ?? "30d", until: query.until, ...(query.user && by !== "user" ? { user: query.user } : {}) } : null;
  const name = by === "day" ? dayLabel(group.label) : group.label;
  return html`
    <tr>
      <th scope="row">${filters ? html`<a href=${link("history", filters)}><bdi>${name}</bdi></a>` : name}</th>
      <td class="figure" data-label="jobs">${figures.jobs.toLocaleString()}</td>
      <td class="bar-cell" data-label="GPU-hours"><${Hours} figures=${figures} most=${most} /></td>
      <td class="bar-cell" data-label="peak of asked"><${Memory} figures=${figures} /></td>
      <td class="figure" data-label="never used, GiB-hours">${decimal(unusedGibHours(figures))}</td>
      <td class="figure" data-label="median wait">${time(figures.wait_median_s)}</td>
      <td class="figure" data-label="95 % wait">${time(figures.wait_p95_s)}</td>
      <td class="bar-cell" data-label="failed"><${Failures} figures=${figures} to=${filters ? link("history", { ...filters, state: "failed,lost" }) : null} /></td>
      <td class="figure" data-label="out of memory">${figures.out_of_memory.toLocaleString()}</td>
    </tr>
  `;
}

/** @param {{found: Statistics, query: Record<string, string>}} props */
export function StatisticsTable({ found, query }) {
  const groups = found.groups.filter((each) => each.figures.runs);
  const most = Math.max(...groups.map((each) => deviceS(each.figures)));
  return html`
    <div class="wide" tabindex="0" role="region" aria-label="Statistics, scrollable">
      <table class="statistics-table" aria-label="Statistics">
        <thead><tr>
          <th scope="col">${HEADS[found.by]}</th><th scope="col" class="figure">Jobs</th><th scope="col" class="bar-cell" title="The time of the cards: jobs that share one share its time by their allocated memory">GPU-hours</th>
          <th scope="col" class="bar-cell" title="Means of a device over the time for which the peak is known">Peak of the memory asked for</th>
          <th scope="col" class="figure" title="Memory that was asked for and never used, not even at the peak, times the hours">Never used, GiB-hours</th>
          <th scope="col" class="figure">Median wait</th><th scope="col" class="figure" title="95 % of the jobs waited no longer">95 % wait</th>
          <th scope="col" class="bar-cell">Failed</th><th scope="col" class="figure">Out of memory</th>
        </tr></thead>
        <tbody>${groups.map((each) => html`<${Row} key=${each.key} by=${found.by} group=${each} most=${most} query=${query} />`)}</tbody>
      </table>
    </div>
  `;
}
