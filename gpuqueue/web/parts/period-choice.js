// The choice of a period: one that ends now, or two dates.
import { html } from "../lib.js";
import { PERIODS, dateOf, withRuns } from "../period.js";
import { filter } from "./filter-fields.js";

/** @typedef {import("./filter-fields.js").Changed} Changed */

const DATES = "dates";
/** Where two dates begin, before anybody has chosen them, in milliseconds ago. */
const WEEK_MS = 7 * 86400 * 1000;

/**
 * @param {object} props
 * @param {Record<string, string>} props.query
 * @param {string} props.usual the period without a filter, empty for all time
 * @param {string | null} [props.firstAt] when the first job of all was submitted, if that is known
 * @param {string | null} [props.lastAt] when the last one ended: only periods with runs are offered
 */
export function PeriodChoice({ query, usual, firstAt = null, lastAt = null }) {
  const since = query.since ?? "";
  const isDates = Boolean(query.until) || /^\d{4}-/.test(since);
  const chosenNow = since || usual;
  const offered = PERIODS.filter((each) => each[0] === chosenNow || withRuns(firstAt, lastAt, Date.now()).includes(each));
  const known = PERIODS.map(([value]) => value);
  const words = since && !isDates && !known.includes(since) ? [...offered, [since, `last ${since}`]] : offered;
  /** @param {Changed} event */
  const chosen = (event) => {
    const value = event.currentTarget.value;
    if (value === DATES) filter({ since: dateOf(new Date(Date.now() - WEEK_MS)), until: null });
    else filter({ since: value === usual ? null : value, until: null });
  };
  /** @param {string} name @param {string} label */
  const date = (name, label) => html`
    <label class="choice">${label}
      <input type="date" min=${firstAt ? dateOf(new Date(firstAt)) : undefined} max=${dateOf(new Date())} value=${(query[name] ?? "").slice(0, 10)} onChange=${(/** @type {Changed} */ event) => filter({ [name]: event.currentTarget.value || null })} />
    </label>`;
  return html`
    <label class="choice">Period
      <select value=${isDates ? DATES : since || usual} onChange=${chosen}>
        ${usual ? null : html`<option value="">all time</option>`}
        ${words.map(([value, label]) => html`<option key=${value} value=${value}>${label}</option>`)}
        <option value=${DATES}>from a date…</option>
      </select>
    </label>
    ${isDates ? html`${date("since", "from")} ${date("until", "to before")}` : null}
  `;
}
