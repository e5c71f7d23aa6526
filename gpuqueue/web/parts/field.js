// A field of a form: its label above it, and a line below it that says what it takes.
import { html } from "../lib.js";

/**
 * @param {object} props
 * @param {string} props.id
 * @param {string} props.label
 * @param {any} [props.hint]
 * @param {boolean} [props.wide]
 * @param {any} props.children the input, which has the id
 */
export function Field({ id, label, hint, wide = false, children }) {
  return html`
    <div class=${`field ${wide ? "whole" : ""}`}>
      <label for=${id}>${label}</label>
      ${children}
      ${hint ? html`<small id=${`${id}-hint`}>${hint}</small>` : null}
    </div>
  `;
}
