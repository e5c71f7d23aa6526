// A small chart with a column for each day. The numbers are in its texts, and in the table by day.
import { heightsOf, ticksOf } from "../figures.js";
import { html } from "../lib.js";

/** @typedef {import("../history-types.js").Figures} Figures */
/** @typedef {import("../history-types.js").Group} Group */

const DAY = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });

/** The name of a day such as 2026-11-21. @param {string} key */
export const dayLabel = (key) => (/^\d{4}-\d\d-\d\d$/.test(key) ? DAY.format(new Date(`${key}T12:00`)) : key);

/**
 * What the chart shows in one line: the sum, if that means something, and the largest value with its day.
 * @param {Group[]} days
 * @param {(number | null)[]} values
 * @param {(value: number) => string} shown
 * @param {boolean} adds
 */
function summary(days, values, shown, adds) {
  const known = /** @type {number[]} */ (values.filter((each) => each !== null));
  const most = Math.max(...known, 0);
  if (shown(most) === shown(0)) return "none";
  const largest = `${adds ? "most" : "longest"} on ${dayLabel(days[values.indexOf(most)].label)}: ${shown(most)}`;
  return adds ? `${shown(known.reduce((sum, each) => sum + each, 0))} in all, ${largest}` : largest;
}

/**
 * @param {object} props
 * @param {string} props.title
 * @param {Group[]} props.days
 * @param {(figures: Figures) => number | null} props.value null if it is not known
 * @param {(value: number) => string} props.shown
 * @param {number | null} [props.unit] in what the axis counts: 3600 for hours; null: times in the unit that fits
 * @param {boolean} [props.isWhole] whether the axis counts whole things
 * @param {string} [props.kind] its colour: used, warn or bad
 * @param {boolean} [props.adds] whether the values of days make a sum
 */
export function DayChart({ title, days, value, shown, unit = null, isWhole = false, kind = "used", adds = true }) {
  const values = days.map((each) => value(each.figures));
  const ticks = ticksOf(Math.max(...values.map((each) => each ?? 0), 0), unit, isWhole);
  const top = ticks[ticks.length - 1];
  const heights = heightsOf(values, shown, top);
  const words = summary(days, values, shown, adds);
  return html`
    <figure class="day-chart">
      <figcaption>${title} a day <small>${words}</small></figcaption>
      <div class="plot">
      <div class="scale" aria-hidden="true">${ticks.map((each) => html`<span key=${each} style=${{ bottom: `${(each / top) * 100}%` }}>${shown(each)}</span>`)}</div>
      <div class=${`columns ${kind}`} role="img" aria-label=${`${title} by day: ${words}`}>
        ${days.map((each, place) => {
          const own = values[place];
          return html`<span key=${each.key} title=${`${dayLabel(each.label)}: ${own === null ? "not known" : shown(own)}`}><i style=${{ height: `${heights[place]}%` }}></i></span>`;
        })}
        ${ticks.slice(1).map((each) => html`<b key=${each} style=${{ bottom: `${(each / top) * 100}%` }}></b>`)}
      </div>
      </div>
      <div class="axis" aria-hidden="true"><span>${dayLabel(days[0].label)}</span><span>${days.length > 1 ? dayLabel(days[days.length - 1].label) : ""}</span></div>
    </figure>
  `;
}
