// A field of a form: its label above it, a line below it that says what it takes, and what is wrong with it.
import { html } from "../lib.js";

/** What is wrong with the field of an id: its screen reader finds it by `describedBy`. @param {{id: string, words: string | null}} props */
export const Fault = ({ id, words }) => (words ? html`<small id=${`${id}-fault`} class="bad-text fault" role="alert">${words}</small>` : null);

/** The attributes of the field of an id that may be wrong. @param {string} id @param {string | null} fault @param {boolean} [hasHint] */
export const described = (id, fault, hasHint = false) => ({
  "aria-invalid": fault ? "true" : undefined,
  "aria-describedby": [hasHint ? `${id}-hint` : "", fault ? `${id}-fault` : ""].filter(Boolean).join(" ") || undefined,
});

/**
 * @param {object} props
 * @param {string} props.id
 * @param {string} props.label
 * @param {any} [props.hint]
 * @param {string | null} [props.fault] what is wrong with it
 * @param {boolean} [props.wide]
 * @param {any} props.children the input, which has the id
 */
export function Field({ id, label, hint, fault = null, wide = false, children }) {
  return html`
    <div class=${`field ${wide ? "whole" : ""}`}>
      <label for=${id}>${label}</label>
      ${children}
      <${Fault} id=${id} words=${fault} />
      ${hint ? html`<small id=${`${id}-hint`}>${hint}</small>` : null}
    </div>
  `;
}
