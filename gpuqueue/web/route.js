// The address of the page: which view, and its filters. It is the part behind the #, so that a link keeps everything.
import { useEffect, useState } from "./lib.js";

/** @typedef {{view: string, id: string, query: Record<string, string>}} Route `id` names what is shown, such as a job */

/** @param {string} text */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // somebody has typed a percent sign
  }
}

/** @returns {Route} */
export function current() {
  const [path, words] = location.hash.replace(/^#\/?/, "").split("?");
  const [view, id] = path.split("/");
  return { view, id: decoded(id ?? ""), query: Object.fromEntries(new URLSearchParams(words ?? "")) };
}

/**
 * The link of a view. Empty filters are left out.
 * @param {string} view
 * @param {Record<string, string | null | undefined>} [query]
 */
export function link(view, query = {}) {
  const kept = Object.entries(query).filter(([, value]) => value);
  const words = new URLSearchParams(/** @type {[string, string][]} */ (kept)).toString();
  return `#/${view}${words ? `?${words}` : ""}`;
}

/** The link of a job. @param {string | number} label such as 17 or 17_2 */
export const jobLink = (label) => link(`jobs/${label}`);

/** Go to another address instead of this one: the way back leads to the one before. @param {string} hash */
export function replace(hash) {
  history.replaceState(null, "", hash);
  dispatchEvent(new HashChangeEvent("hashchange"));
}

/**
 * Change the filters of the view that is shown. A small change, such as of a search, replaces the entry in the history.
 * @param {Record<string, string | null>} changes
 */
export function refine(changes) {
  const { view, id, query } = current();
  const next = link(id ? `${view}/${encodeURIComponent(id)}` : view, { ...query, ...changes });
  if (next !== location.hash) replace(next);
}

/** @returns {Route} */
export function useRoute() {
  const [route, setRoute] = useState(current);
  useEffect(() => {
    const moved = () => setRoute(current());
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  return route;
}
