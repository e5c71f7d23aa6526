// Fields of filters, whose values are in the address.
import { html, useEffect, useRef, useState } from "../lib.js";
import { refine } from "../route.js";

/** @typedef {Event & {currentTarget: HTMLInputElement & HTMLSelectElement}} Changed */

/** How long a text waits for the next letter, in milliseconds. */
const PAUSE_MS = 350;

/** Change a filter, and go back to the first page. @param {Record<string, string | null>} changes */
export const filter = (changes) => refine({ after: null, ...changes });

/**
 * @param {object} props
 * @param {string} props.name the filter in the address
 * @param {string} props.label
 * @param {string | undefined} props.value
 * @param {string} [props.placeholder]
 * @param {string} [props.type]
 * @param {string[]} [props.choices] what the browser suggests
 * @param {(text: string) => string | null} [props.check] what is wrong with a text, null if nothing is
 */
export function TextFilter({ name, label, value = "", placeholder = "", type = "text", choices = [], check }) {
  const [text, setText] = useState(value);
  const field = useRef(/** @type {HTMLInputElement | null} */ (null));
  const timer = useRef(0);
  useEffect(() => {
    if (document.activeElement !== field.current) setText(value);
  }, [value]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const wrong = text.trim() && check ? check(text.trim()) : null;
  /** @param {Changed} event */
  const typed = (event) => {
    const next = event.currentTarget.value;
    setText(next);
    clearTimeout(timer.current);
    if (next.trim() && check?.(next.trim())) return;
    timer.current = window.setTimeout(() => filter({ [name]: next.trim() || null }), PAUSE_MS);
  };
  return html`
    <label class=${`choice filter-${name}`}>${label}
      <input ref=${field} type=${type} value=${text} onInput=${typed} placeholder=${placeholder} maxlength="200" autocomplete="off" spellcheck="false"
        aria-invalid=${wrong ? "true" : undefined} list=${choices.length ? `${name}-choices` : undefined} />
      ${choices.length ? html`<datalist id=${`${name}-choices`}>${choices.map((each) => html`<option key=${each} value=${each} />`)}</datalist>` : null}
      ${wrong ? html`<small class="bad-text" role="status">${wrong}</small>` : null}
    </label>
  `;
}

/**
 * @param {object} props
 * @param {string} props.name
 * @param {string} props.label
 * @param {string | undefined} props.value
 * @param {[string, string][]} props.choices values and their words
 * @param {string} [props.any] the word for no filter
 */
export function SelectFilter({ name, label, value = "", choices, any = "any" }) {
  return html`
    <label class="choice">${label}
      <select value=${value} onChange=${(/** @type {Changed} */ event) => filter({ [name]: event.currentTarget.value || null })}>
        <option value="">${any}</option>
        ${choices.map(([each, words]) => html`<option key=${each} value=${each}>${words}</option>`)}
      </select>
    </label>
  `;
}
