// A part of a view with a heading of its own.
import { html } from "../lib.js";

/** @param {{name: string, title: any, tools?: any, children?: any}} props */
export function Panel({ name, title, tools, children }) {
  return html`
    <section class=${`panel ${name}`} aria-labelledby=${`panel-${name}`}>
      <div class="panel-head"><h2 id=${`panel-${name}`}>${title}</h2>${tools}</div>
      ${children}
    </section>
  `;
}
