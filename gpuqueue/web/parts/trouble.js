// The banner that says what does not answer. The data below it stays as it was.
import { html } from "../lib.js";
import { clock } from "../words.js";

/** @type {Record<string, string>} */
const WHO = {
  StoreUnreachable: "The store of the queue does not answer. Jobs that run go on; nothing can be submitted or changed.",
  HistoryUnreachable: "The history database does not answer.",
};

/**
 * @param {object} props
 * @param {import("../api.js").ApiError | null} [props.error]
 * @param {boolean} [props.isHistoryAway]
 * @param {string | null} [props.at] the time of the data that is shown
 */
export function Trouble({ error, isHistoryAway, at }) {
  if (error) {
    const words = error.status === 0 ? "The service does not answer. This page tries again by itself." : (WHO[error.kind] ?? error.message);
    return html`<p class="banner bad" role="alert">${words} ${at ? `What you see is from ${clock(at)}.` : null}</p>`;
  }
  if (isHistoryAway) return html`<p class="banner" role="status">The history database does not answer: past jobs cannot be shown. The queue goes on.</p>`;
  return null;
}
