// Which fields of a form an error of the service is about.

/** @typedef {keyof import("./history-types.js").JobForm} FieldName */

/** What a message is about, by its text. The first one counts. @type {[RegExp, FieldName][]} */
const FIELDS = [
  [/\btargets?\b|notify_urls|nothing can be sent/, "on_end"],
  [/\bsweep\b/, "sweep"],
  [/at_once|at once/, "at_once"],
  [/\barray\b|\bindex/, "array"],
  [/^after\b|dependency|dependencies/, "after"],
  [/^cpu_mem\b/, "cpu_mem"],
  [/^cpus\b/, "cpus"],
  [/ is not a (usable )?size: /, "mem"],
  [/ is not a (usable )?duration: /, "time_limit"],
  [/time limit|time_limit|limit max_time/, "time_limit"],
  [/\bmem\b|memory|limit max_mem/, "mem"],
  [/^gpus\b|devices asked for|cannot ask for .* devices/, "gpus"],
  [/\bpool\b/, "pool"],
  [/\bdevice\b/, "device"],
  [/\bPython\b|interpreter/, "python"],
  [/environment/, "environment"],
  [/\bpriority\b/, "priority"],
  [/\btags?\b/, "tags"],
  [/arguments/, "args"],
  [/\bname\b/, "name"],
];

/** What is wrong with which field; its name is null if none is known. @typedef {{field: string | null, words: string}} FormFault */

/** What is wrong with the fields of a form, as an error of the service says. @param {import("./api.js").ApiError} error @returns {FormFault[]} */
export const faultsOf = ({ faults, message }) => (faults.length ? faults.map(({ field, words }) => ({ field: field || fieldOf(words), words })) : [{ field: fieldOf(message), words: message }]);

/** The field that a message of the service is about, null if none is named. @param {string} message */
export const fieldOf = (message) => FIELDS.find(([about]) => about.test(message))?.[1] ?? null;
