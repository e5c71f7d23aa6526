// A value that is not known, or that there is not: a dash, which a screen reader reads as words.
import { html } from "../lib.js";

export const none = (words = "not known") => html`<span class="none"><span aria-hidden="true">–</span><span class="hidden">${words}</span></span>`;
