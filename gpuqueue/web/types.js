// The values of the API that the page uses. docs/reference/openapi.json describes them.

/** @typedef {{account: string, uid: number | null, via: string, scopes: string[], admin: boolean, token_id: string | null, may: string[]}} Me */

/**
 * @typedef {{id: string, account: string, uid: number | null, scopes: string[], name: string, made_at: string,
 *   expires_at: string | null, last_used_at: string | null, revoked_at: string | null}} AccessToken
 */

/** @typedef {{total: number, waiting: number, held: number, ended: number, failed: number, running: number, words: string}} Members */

/**
 * @typedef {object} QueueRow
 * @property {number} id
 * @property {string} label
 * @property {string} name
 * @property {string} user
 * @property {number} uid
 * @property {string} state
 * @property {string} priority
 * @property {string} asked_priority
 * @property {number} mem_bytes
 * @property {number} gpus
 * @property {string} submitted_at
 * @property {boolean} whole
 * @property {string} pool
 * @property {string[]} tags
 * @property {string | null} note
 * @property {string | null} reason
 * @property {string | null} waits
 * @property {string | null} begins_at
 * @property {string | null} started_at
 * @property {number | null} time_limit_s
 * @property {string | null} host
 * @property {string[]} devices
 * @property {string | null} where
 * @property {number | null} used_bytes
 * @property {string | null} idle_since
 * @property {RunMark[]} marks
 * @property {number} attempt
 * @property {number | null} array_id
 * @property {Members | null} members
 * @property {number | null} front
 */

/**
 * @typedef {object} QueueTable
 * @property {string} at
 * @property {number} offset
 * @property {number} total
 * @property {QueueRow[]} rows
 * @property {Record<string, number>} counts
 * @property {number} idle
 * @property {string[]} users
 * @property {string[]} pools
 * @property {string[]} tags
 * @property {boolean} complete
 * @property {boolean} left_out
 */

/** @typedef {{ahead: number, words: string, start_at: string | null, about_at: string | null, reserved: boolean, never: boolean}} JobPlace */

/** @typedef {{kind: string, since: string, until: string | null, what: string, brief: string, words: string}} RunMark */

/** @typedef {{used: (number | null)[], utilisation: (number | null)[]}} DevicePast shares of 1, the newest last */

/** @typedef {{at: string, step_s: number, devices: Record<string, DevicePast>}} DevicesPast */

/** @typedef {{share: number, counts: string, left_s: number | null, ends_at: string | null, words: string}} Progress */

/**
 * @typedef {object} DeviceRun
 * @property {number} job_id
 * @property {number} allocated_bytes
 * @property {number} used_bytes
 * @property {string | null} label
 * @property {string | null} name
 * @property {string | null} user
 * @property {string | null} ends_at
 * @property {string} [about_at] when it has probably ended: added by the page
 * @property {string | null} idle_since
 */

/** @typedef {{user: string | null, processes: number, held_bytes: number | null, commands: string[], job_id: number | null, label: string | null}} ExternalUse */

/**
 * @typedef {object} DeviceView
 * @property {string} uuid
 * @property {string} host
 * @property {number} index
 * @property {string} name
 * @property {string} kind
 * @property {string} pool
 * @property {number} total_bytes
 * @property {number} headroom_bytes
 * @property {number} allocated_bytes
 * @property {number} used_bytes
 * @property {number | null} external_bytes
 * @property {number} free_bytes
 * @property {number} slots
 * @property {boolean} exclusive
 * @property {string | null} mig_parent
 * @property {DeviceRun[]} runs
 * @property {ExternalUse[]} external
 * @property {number | null} utilisation
 * @property {number | null} temperature_c
 * @property {number | null} power_w
 * @property {string | null} free_at
 * @property {string | null} trouble
 * @property {string | null} drained
 * @property {string | null} ends_at
 * @property {string | null} end_reason
 * @property {number | null} reserved_for
 * @property {number | null} beside_bytes
 * @property {string | null} reserved_until
 * @property {number | null} silent_s
 * @property {string | null} refusals
 * @property {string | null} closed
 * @property {string[]} errors
 * @property {CalendarReservation[]} calendar
 * @property {string | null} calendar_words
 */

/** @typedef {{id: number, users: string[], begins_at: string, ends_at: string, why: string, by: string, devices: string[]}} CalendarReservation */

/** @typedef {{at: string, devices: DeviceView[], counts: Record<string, number>, in_line: number, history_away: boolean}} Overview */

export {};
