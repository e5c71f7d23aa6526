// One job in words: its state, its endings, what it asks for, and what each of its steps was.
import { STATES, duration, plural, size } from "./words.js";

/** @type {Record<string, string>} */
const ENDED = { succeeded: "succeeded", failed: "failed", cancelled: "cancelled", lost: "lost" };

/** @param {string | null} state */
export const stateWords = (state) => (state === null ? "just ended" : (STATES[state] ?? ENDED[state] ?? state));

/** @param {string} state */
export const isEnd = (state) => state in ENDED;

/** @param {string} state */
export const isActive = (state) => ["starting", "running", "cancelling"].includes(state);

/** What a job asks for. @param {import("./job-types.js").Spec} spec */
export function askedWords(spec) {
  const { placement, gpus } = spec;
  const memory = placement.whole ? "all memory" : size(spec.mem_bytes);
  const kind = spec.device === "cpu" ? "the CPU" : gpus > 1 ? `each of ${gpus} devices of one host` : "one device";
  const more = [
    placement.exclusive && !placement.whole ? "alone there" : "",
    placement.models.length ? `of the type ${placement.models.join(" or ")}` : "",
    spec.pool ? `in the pool ${spec.pool}` : "",
    spec.time_limit_s === null ? "no time limit" : `at most ${duration(spec.time_limit_s)}`,
    spec.cap ? "" : "and it may use more memory than that",
  ];
  return [`${memory} on ${kind}`, ...more.filter(Boolean)].join(", ");
}

/** What the service says of the memory of a job, without options of the command line. @param {string} verdict */
export const verdictWords = (verdict) => verdict.replaceAll("--mem ", "");

/**
 * Whether a job was made by the form of the page: such a job has its code, and no directory.
 * @param {import("./job-types.js").Spec} spec
 */
export const isFromPage = (spec) => spec.cwd === "/" && Boolean(spec.snapshot);

/** The most that a job may use of its host, as the command line says it; "" without limits. @param {import("./job-types.js").Spec} spec */
export function limitWords({ cpus, cpu_mem_bytes: bytes }) {
  const parts = [cpus === null ? "" : plural(cpus, "processor"), bytes === null ? "" : `${size(bytes)} of host memory`].filter(Boolean);
  return parts.length ? `at most ${parts.join(", ")}` : "";
}

/** A command line, quoted for a shell. @param {string[]} argv */
export const commandOf = (argv) => argv.map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`)).join(" ");
