// The values of the API that the view of a job uses. docs/reference/openapi.json describes them.

/** @typedef {{step_s: number, bytes: (number | null)[]}} Timeline */
/** @typedef {{bytes: number | null, source: string, samples: number, interval_s: number | null, shared: boolean | null}} Peak */
/** @typedef {{first_memory_s: number | null, utilisation_mean: number | null, utilisation_max: number | null, temperature_max_c: number | null}} Activity */

/**
 * @typedef {object} RunDevice
 * @property {string} uuid
 * @property {number} lease_bytes
 * @property {number | null} index
 * @property {string | null} name
 * @property {string | null} kind
 * @property {Peak} peak
 * @property {Activity} activity
 * @property {Timeline | null} timeline
 */

/** @typedef {{value: number | string, after_s: number, step: number | null}} Reported */
/**
 * @typedef {{name: string, count: number, last: Reported, min: Reported | null, max: Reported | null,
 *   curve: [number, number | null, number | string][]}} Metric
 */
/** @typedef {{metrics: Metric[], params: Record<string, string>, result: Record<string, unknown> | null}} JobValues */
/** @typedef {{timelines: Record<string, Timeline>, values: JobValues | null}} RunFigures */

/** @typedef {{kind: string, exit_code: number | null, signal: number | null, detail: string, words: string}} Ending */
/**
 * @typedef {{kind: string, items: string[], count: number, size_bytes: number | null, owner: string, words: string}}
 *   RunNote
 */

/**
 * @typedef {object} Run
 * @property {number} attempt
 * @property {string} host
 * @property {RunDevice[]} devices
 * @property {string} claimed_at
 * @property {string | null} started_at
 * @property {string | null} ended_at
 * @property {number | null} duration_s
 * @property {Ending | null} ending
 * @property {string | null} log_path
 * @property {string | null} start_kind
 * @property {RunNote[]} notes
 * @property {import("./types.js").RunMark[]} marks
 * @property {Record<string, number>} limits
 * @property {JobValues | null} values
 */

/** @typedef {{job_id: number, condition: string}} Dependency */
/** @typedef {{left: string, held: string, ended: Record<string, number>}} Tally */

/**
 * @typedef {object} Spec
 * @property {string[]} argv
 * @property {string} cwd
 * @property {{name: string, uid: number, host: string}} account
 * @property {number} mem_bytes
 * @property {string} name
 * @property {Record<string, string>} env
 * @property {number} gpus
 * @property {string | null} device
 * @property {{exclusive: boolean, whole: boolean, models: string[], devices: string[], preference: string | null}} placement
 * @property {number | null} time_limit_s
 * @property {string} priority
 * @property {string} pool
 * @property {boolean} cap
 * @property {string | null} interpreter
 * @property {string | null} environment
 * @property {string | null} snapshot
 * @property {string[]} keep
 * @property {string | null} container
 * @property {string[]} binds
 * @property {{to: string, when: string}[]} notifications
 * @property {{after: Dependency[], begin_at: string | null, hold: boolean, dedupe: string | null}} waits
 * @property {{times: number, on: string[], mem_times: number | null}} retries
 * @property {{indexes: string, at_once: number | null, max_failures: number | null, axes: string[]} | null} array
 * @property {number | null} retry_of
 * @property {{commit: string, branch: string | null, dirty: boolean | null} | null} git
 * @property {boolean} separate_stderr
 * @property {number | null} cpus
 * @property {number | null} cpu_mem_bytes
 */

/**
 * @typedef {object} Job
 * @property {number} id
 * @property {Spec} spec
 * @property {string} state
 * @property {string} submitted_at
 * @property {number} attempt
 * @property {string | null} reason
 * @property {string | null} claimed_at
 * @property {string | null} started_at
 * @property {string | null} ended_at
 * @property {string | null} host
 * @property {Dependency[]} awaits
 * @property {string | null} begins_at
 * @property {string | null} because
 * @property {number | null} front
 * @property {{array_id: number, index: number} | null} member
 * @property {Tally | null} tally
 * @property {string[]} tags
 * @property {string | null} note
 * @property {string | null} promoted
 * @property {string | null} idle_since
 * @property {import("./types.js").RunMark[]} marks
 */

/** @typedef {{at: string, attempt: number, text: string}} Note */
/** @typedef {{job: Job, runs: Run[], notes: Note[], outcome: string}} Record_ */
/** @typedef {{id: number, condition: string | null, name: string | null, state: string | null, must: string}} Related */
/** @typedef {{change: boolean, retry: boolean, logs: boolean, arguments: boolean}} Rights */

/**
 * @typedef {object} JobView
 * @property {string} at
 * @property {Record_} record
 * @property {Rights} rights
 * @property {string} asked
 * @property {string} command
 * @property {string} again
 * @property {string} ended
 * @property {string} use
 * @property {string | null} limits
 * @property {string | null} git
 * @property {string | null} verdict
 * @property {Record<number, string>} failures
 * @property {Related[]} after
 * @property {Related[]} before
 * @property {Related[]} retries
 * @property {Record<string, string>} values
 * @property {Note | null} idle
 * @property {string | null} away
 */

/**
 * @typedef {object} DeviceUse
 * @property {string} uuid
 * @property {string} host
 * @property {number} index
 * @property {string} name
 * @property {string} kind
 * @property {number} total_bytes
 * @property {number} allocated_bytes
 * @property {number} used_bytes
 * @property {boolean} silent
 * @property {number | null} utilisation
 * @property {number | null} temperature_c
 * @property {number | null} power_w
 */

/**
 * @typedef {object} LiveJob
 * @property {string} at
 * @property {import("./types.js").QueueRow | null} row
 * @property {import("./types.js").JobPlace | null} place
 * @property {DeviceUse[]} devices
 */

/**
 * @typedef {object} StoryStep
 * @property {string} at
 * @property {"step" | "wait" | "run" | "good" | "bad" | "note"} kind
 * @property {string} words
 * @property {string} detail
 * @property {number | null} duration_s
 * @property {string | null} until
 * @property {number | null} for_job
 */

/**
 * @typedef {object} MemberRow
 * @property {number} id
 * @property {number} index
 * @property {string | null} state
 * @property {string[]} values
 * @property {string | null} host
 * @property {string | null} where
 * @property {string | null} started_at
 * @property {number | null} duration_s
 * @property {number | null} peak_bytes
 * @property {number | null} used_bytes
 * @property {string} ended
 * @property {Record<string, number>} metrics
 */

/**
 * @typedef {{at: string, total: number, offset: number, rows: MemberRow[], axes: string[], counts: Record<string, number>, metrics: string[], sortable: boolean}}
 *   MemberTable
 */

/** @typedef {{job_id: number, held_bytes: number, ends_ms: number | null, going: boolean}} Occupant */

/** @typedef {{higher: number, theirs: number, own_before: number, devices: {device: string, runs: Occupant[]}[]}} Explanation */
/** @typedef {{uuid: string, label: string, available_bytes: number, total_bytes: number, why_not: string}} DeviceSentence */
/** @typedef {{asked: string, start: string[], obstacles: string[], devices: DeviceSentence[], rest: string[], order: string | null}} WhySentences */

/**
 * @typedef {object} Why
 * @property {Job} job
 * @property {Explanation | null} explanation
 * @property {Record<string, Job>} others
 * @property {WhySentences | null} sentences
 */

export {};
