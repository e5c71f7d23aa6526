// A small chart with a column for each day. The numbers are in its texts, and in the table by day.
import { html } from "../lib.js";

const DAY = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });

/** The name of a day such as 2026-11-21. @param {string} key */
export const dayLabel = (key) => (/^\d{4}-\d\d-\d\d$/.test(key) ? DAY.format(new Date(`${key}T12:00`)) : key);

/**
 * @param {object} props
 * @param {string} props.title
 * @param {import("../history-types.js").Group[]} props.days
 * @param {(figures: import("../history-types.js").Figures) => number} props.value
 * @param {(value: number) => string} props.shown
 * @param {string} [props.kind] its colour: used or bad
 */
export function DayChart({ title, days, value, shown, kind = "used" }) {
  const values = days.map((each) => value(each.figures));
  const most = Math.max(...values, 0);
  const peak = days[values.indexOf(most)];
  const sum = values.reduce((all, each) => all + each, 0);
  const words = most > 0 ? `${shown(sum)} in all, most on ${dayLabel(peak.label)}: ${shown(most)}` : "none";
  return html`
    <figure class="day-chart">
      <figcaption>${title} <small>${words}</small></figcaption>
      <div class=${`columns ${kind}`} role="img" aria-label=${`${title} by day: ${words}`}>
        ${days.map((each, place) => html`<span key=${each.key} title=${`${dayLabel(each.label)}: ${shown(values[place])}`}><i style=${{ height: `${most > 0 ? (values[place] / most) * 100 : 0}%` }}></i></span>`)}
      </div>
      <div class="axis" aria-hidden="true"><span>${dayLabel(days[0].label)}</span><span>${days.length > 1 ? dayLabel(days[days.length - 1].label) : ""}</span></div>
    </figure>
  `;
}
