// The time of the service, which a browser's clock may not have.
import { useEffect, useMemo, useState } from "./lib.js";

/** How often what depends on the time is drawn anew, in milliseconds. */
const EVERY_MS = 5000;

/**
 * The time of the service in milliseconds, from the time of its last answer. It goes on while answers do not change.
 * @param {string | null} at
 */
export function useNow(at) {
  const [, draw] = useState(0);
  const ahead = useMemo(() => (at === null ? 0 : new Date(at).getTime() - Date.now()), [at]);
  useEffect(() => {
    const timer = setInterval(() => document.visibilityState === "visible" && draw(Date.now()), EVERY_MS);
    return () => clearInterval(timer);
  }, []);
  return Math.floor((Date.now() + ahead) / 1000) * 1000;
}
