// When somebody was here before: what has ended since then is news.
import { useEffect, useState } from "./lib.js";
import { remember, remembered } from "./storage.js";

/** After so long without a look a new visit begins, in milliseconds. A first visit looks back for a day. */
const AWAY_MS = 30 * 60 * 1000;
const FIRST_MS = 24 * 3600 * 1000;
/** How often a look is noted. */
const NOTED_MS = 30 * 1000;

/** @typedef {{since: number, seen: number}} Visit in milliseconds: the end of the last visit, and the last look */

/** @param {string} account @param {number} now @returns {Visit} */
function visitAt(account, now) {
  const [since, seen] = (remembered(`visit.${account}`) ?? "").split(" ").map(Number);
  if (!seen) return { since: now - FIRST_MS, seen: now };
  return { since: now - seen > AWAY_MS ? seen : since, seen: now };
}

/**
 * Follow the visits of an account in this browser. Return the end of the last one in milliseconds, and a function that
 * makes everything seen.
 * @param {string} account
 * @param {number | null} now the time of the service, null while it is not known
 * @returns {[number | null, () => void]}
 */
export function useVisit(account, now) {
  const [since, setSince] = useState(/** @type {number | null} */ (null));
  const step = now === null ? null : Math.floor(now / NOTED_MS);
  /** @param {Visit} visit */
  const note = (visit) => {
    remember(`visit.${account}`, `${visit.since} ${visit.seen}`);
    setSince(visit.since);
  };
  useEffect(() => {
    if (now !== null && document.visibilityState === "visible") note(visitAt(account, now));
  }, [account, step]);
  return [since, () => now !== null && note({ since: now, seen: now })];
}
