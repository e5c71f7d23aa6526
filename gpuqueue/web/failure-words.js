// Why a run failed, in sentences: what its ending means, and what helps.
import { SIGNALS } from "./job-words.js";
import { duration } from "./words.js";

/** @typedef {import("./job-types.js").Ending} Ending */
/** @typedef {import("./job-types.js").Spec} Spec */

const KILLED = "Mostly the kernel does that, when the memory of the host is full.";
const CRASHES = [4, 6, 7, 8, 11];
/** An exit code above this one is that and a signal, by the custom of shells. */
const BY_SIGNAL = 128;

/** @param {number | null} signal */
const killedWords = (signal) => (signal === 9 ? `Something outside of the queue killed it. ${KILLED}` : CRASHES.includes(signal ?? 0) ? "Its program crashed." : "Something outside of the queue sent it this signal.");

/** @param {number} code */
function codeWords(code) {
  if (code === 126 || code === 127) return "A command that it calls is not there, or may not be run.";
  const signal = SIGNALS[code - BY_SIGNAL];
  if (signal) return `The code means that a process of it was killed by ${signal}.${signal === "SIGKILL" ? ` ${KILLED}` : ""}`;
  return "The program stopped with an error. What it was is usually in the last lines of its output. Correct it, then run the job again.";
}

/** What the endings of failed runs mean. @type {Record<string, (ending: Ending, spec: Spec) => string>} */
const MEANINGS = {
  exited: (ending) => codeWords(ending.exit_code ?? 0),
  signalled: (ending) => killedWords(ending.signal),
  out_of_memory: () => "The memory of the device ran out. Run it again with more memory, or make its batches smaller.",
  timed_out: (_, spec) => `It may run for ${spec.time_limit_s === null ? "a limited time" : duration(spec.time_limit_s)}. Run it again with a longer time limit, or let it go on from a checkpoint.`,
  refused: () => "It could not be started on any host.",
  lost: () => "Its host or its worker did not answer any more. Nothing is known of its end.",
  idle: () => "It held memory and did not use its devices. This site ends such jobs.",
};

/** What the ending of a run means and what helps, null if it did not fail. @param {Ending | null} ending @param {Spec} spec */
export function failureWords(ending, spec) {
  if (!ending || (ending.kind === "exited" && ending.exit_code === 0)) return null;
  return MEANINGS[ending.kind]?.(ending, spec) ?? null;
}
