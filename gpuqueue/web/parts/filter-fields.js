// Fields of filters, whose values are in the address.
import { html, useEffect, useRef, useState } from "../lib.js";
import { useKeys } from "../keys.js";
import { refine } from "../route.js";

/** @typedef {Event & {currentTarget: HTMLInputElement & HTMLSelectElement}} Changed */

/** How long a text waits for the next letter, in milliseconds. */
const PAUSE_MS = 250;

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
 * @param {string} [props.hotkey] the key that goes to the field
 * @param {() => void} [props.onLeave] where Enter and Escape go from the field
 */
export function TextFilter({ name, label, value = "", placeholder = "", type = "text", choices = [], check, hotkey, onLeave }) {
  const [text, setText] = useState(value);
  const field = useRef(/** @type {HTMLInputElement | null} */ (null));
  const timer = useRef(0);
  useEffect(() => {
    if (document.activeElement !== field.current) setText(value);
  }, [value]);
  useEffect(() => () => clearTimeout(timer.current), []);
  useKeys(hotkey ? { [hotkey]: () => field.current?.select() } : {});
  const wrong = text.trim() && check ? check(text.trim()) : null;
  /** @param {string} next @param {number} pause */
  const apply = (next, pause) => {
    clearTimeout(timer.current);
    if (next.trim() && check?.(next.trim())) return;
    timer.current = window.setTimeout(() => filter({ [name]: next.trim() || null }), pause);
  };
  /** @param {Changed} event */
  const typed = (event) => {
    const next = event.currentTarget.value;
    setText(next);
    apply(next, PAUSE_MS);
  };
  /** @param {KeyboardEvent} event */
  const pressed = (event) => {
    if (!onLeave || event.isComposing || !["Enter", "Escape"].includes(event.key)) return;
    event.preventDefault(); // a search field would forget its text at Escape
    apply(text, 0);
    onLeave();
  };
  return html`
    <label class=${`choice filter-${name} ${type}`}>${label}
      <input ref=${field} type=${type} value=${text} onInput=${typed} onKeyDown=${pressed} placeholder=${placeholder} maxlength="200" autocomplete="off" spellcheck="false"
        aria-invalid=${wrong ? "true" : undefined} list=${choices.length ? `${name}-choices` : undefined} />
      ${choices.length ? html`<datalist id=${`${name}-choices`}>${choices.map((each) => html`<option key=${each} value=${each} />`)}</datalist>` : null}
      ${wrong ? html`<small class="bad-text" role="status">${wrong}</small>` : null}
    </label>
  `;
}

/**
 * A choice, which is not there if there is nothing to choose. A value that is no choice any more stays one.
 * @param {object} props
 * @param {string} props.name
 * @param {string} props.label
 * @param {string | undefined} props.value
 * @param {[string, string][]} props.choices values and their words
 */
export function SelectFilter({ name, label, value = "", choices }) {
  if (!choices.length && !value) return null;
  const all = !value || choices.some(([each]) => each === value) ? choices : [[value, value], ...choices];
  return html`
    <label class="choice">${label}
      <select value=${value} onChange=${(/** @type {Changed} */ event) => filter({ [name]: event.currentTarget.value || null })}>
        <option value="">any</option>
        ${all.map(([each, words]) => html`<option key=${each} value=${each}>${words}</option>`)}
      </select>
    </label>
  `;
}

/**
 * A filter that is on or off.
 * @param {object} props
 * @param {string} props.name
 * @param {any} props.label
 * @param {string | undefined} props.value
 * @param {Record<string, null>} [props.instead] filters that it replaces
 */
export function FlagFilter({ name, label, value, instead = {} }) {
  const changed = (/** @type {Changed} */ event) => filter({ ...instead, [name]: event.currentTarget.checked ? "1" : null });
  return html`<label class="check"><input type="checkbox" checked=${Boolean(value)} onChange=${changed} /> ${label}</label>`;
}
