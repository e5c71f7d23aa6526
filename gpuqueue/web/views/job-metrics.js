// What a run has reported of its own: a curve of each metric since its start, and figures.
import { html } from "../lib.js";
import { LineChart } from "../parts/line-chart.js";
import { Panel } from "../parts/panel.js";
import { duration } from "../words.js";

/** @typedef {import("../job-types.js").JobValues} JobValues */
/** @typedef {import("../job-types.js").Metric} Metric */

/** Most curves that are drawn. The table has all metrics. */
const MOST_CURVES = 6;

/** A value in a few digits. Values that are no number come as text. @param {number | string} value */
const short = (value) => (typeof value === "number" ? String(Number(value.toPrecision(4))) : value);

/** @param {{metric: Metric}} props */
function Curve({ metric }) {
  /** @type {[number, number | null][]} */
  const points = metric.curve.map(([at, , value]) => [at, typeof value === "number" ? value : null]);
  const values = points.flatMap(([, value]) => (value === null ? [] : [value]));
  if (values.length < 2) return null;
  const least = Math.min(0, ...values);
  const most = Math.max(...values, least + 1e-9);
  return html`<${LineChart} title=${`${metric.name} over time: ${short(metric.last.value)} now`} series=${[{ label: metric.name, points }]} marks=${[]}
    least=${least} most=${most} from=${points[0][0]} to=${points[points.length - 1][0]} height=${110} words=${short} timeWords=${duration} />`;
}

/** How a job reports metrics, where there are none. */
export const howToReport = () => html`A line of the output such as <code>metric: loss=0.31 step=100</code> reports one; <code>loss=0.31</code> without <code>metric:</code> does not.`;

/** @param {{values: JobValues | null, sees: boolean}} props *sees* is whether the caller may see metrics of this job */
export function Metrics({ values, sees }) {
  const metrics = values?.metrics ?? [];
  if (!metrics.length) return sees ? html`<${Panel} name="metrics" title="Metrics"><p class="none">None so far. ${howToReport()}</p><//>` : null;
  return html`
    <${Panel} name="metrics" title="Metrics">
      ${metrics.filter((each) => each.curve.length > 1).slice(0, MOST_CURVES).map((each) => html`<${Curve} key=${each.name} metric=${each} />`)}
      <div class="wide" tabindex="0" role="region" aria-label="Metrics of the run, scrollable"><table class="figures" aria-label="Metrics of the run">
        <thead><tr><th scope="col">Metric</th><th scope="col">Last</th><th scope="col">Least</th><th scope="col">Largest</th><th scope="col">Values</th></tr></thead>
        <tbody>${metrics.map((each) => html`<tr key=${each.name}>
          <th scope="row"><bdi>${each.name}</bdi></th>
          <td>${short(each.last.value)}</td><td>${each.min ? short(each.min.value) : "–"}</td><td>${each.max ? short(each.max.value) : "–"}</td><td>${each.count}</td>
        </tr>`)}</tbody>
      </table></div>
    <//>
  `;
}
