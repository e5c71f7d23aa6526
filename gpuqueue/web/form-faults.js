// What the service says about a form, for people who see fields: which one is wrong, in words without options.

/** @typedef {keyof import("./history-types.js").JobForm} FieldName */

/** Advice that names options, and what it is with fields. @type {[RegExp, string][]} */
const ADVICE = [
  [/ask for less with --mem, or for fewer with --gpus/, "ask for less memory, or for fewer devices"],
  [/ask for less with --mem/, "ask for less memory"],
  [/ask for fewer with --gpus/, "ask for fewer devices"],
  [/ask for less with --gpus/, "ask for fewer devices"],
  [/ask for less with --time/, "ask for less time"],
  [/give a time limit with --time/, "give a time limit"],
  [/leave out --gpus/, "ask for one device"],
  [/leave out --pool/, "choose no pool"],
  [/see the pools in gpuqueue gpus --json, or choose no pool/, "choose another pool, or none"],
  [/leave out --device, --pool or --device-type/, "choose another device, or no pool"],
  [/ \(its memory less the headroom\)/, ", as a part of its memory is kept free"],
  [/^--cpus must be (a number )?/, "give a number "],
  [/^--cpu-mem must be (a size )?/, "give a size "],
  [/^--cpu-mem: /, ""],
  [/^--name is empty: give a name, or leave out the option/, "the name is empty: give a name"],
  [/^--name /, "the name "],
  [/, give with --env/, ""],
];

/** What a message is about, by its text. The first one counts. @type {[RegExp, FieldName][]} */
const FIELDS = [
  [/--cpu-mem\b/, "cpu_mem"],
  [/--cpus\b/, "cpus"],
  [/ is not a (usable )?size: /, "mem"],
  [/ is not a (usable )?duration: /, "time_limit"],
  [/--time\b|time limit|time_limit/, "time_limit"],
  [/--mem\b|\bmem\b|memory|limit max_mem/, "mem"],
  [/--gpus\b|^gpus\b|devices asked for|cannot ask for .* devices/, "gpus"],
  [/--pool\b|\bpool\b/, "pool"],
  [/--device\b|\bdevice\b/, "device"],
  [/--python\b|\bPython\b|interpreter/, "python"],
  [/environment/, "environment"],
  [/\bpriority\b/, "priority"],
  [/\btags?\b/, "tags"],
  [/arguments/, "args"],
  [/--name\b|\bname\b/, "name"],
];

/**
 * The field that a message of the service is about, null if none is named, and the message in words for a form.
 * @param {string} message
 * @returns {{field: FieldName | null, words: string}}
 */
export function fieldFault(message) {
  const words = ADVICE.reduce((text, [option, instead]) => text.replace(option, instead), message);
  return { field: FIELDS.find(([about]) => about.test(message))?.[1] ?? null, words };
}
