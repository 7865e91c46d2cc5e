// The filter of the trials: `lr<0.01 state=failed word`, all of which must hold.
import { text } from "./dom.js";

export const STATES = ["queued", "running", "paused", "succeeded", "pruned", "failed", "infeasible", "cancelled"];
const WHOLE = new Set(["number", "attempts"]); // columns of numbers that are not aligned as such
const MOST_NAMED = 12;
const VALUE = /^\s*(<=|>=|!=|==?|<|>)\s*("[^"]*"|\S*)/;
const NOT_FINITE = /^(nan|-?infinity)$/i;
const WORD = /^(?:"([^"]*)"|(\S+))/;

// One function of a row for each condition. A name may hold spaces and signs, so the columns are looked for first. Words
// in quotes are text. Throws an Error with the word that is wrong and what is right.
export function conditions(filter, columns) {
  const names = columns.flatMap(({ key, title }, index) => [{ name: title, index }, { name: key, index }]);
  const found = [];
  let rest = filter.trim();
  while (rest) {
    const comparison = comparisonAt(rest, names);
    if (comparison) {
      const { index, match, whole } = comparison;
      found.push(condition(columns[index], index, match[1], match[2], whole));
      rest = rest.slice(whole.length).trim();
      continue;
    }
    const [word, quoted, plain] = WORD.exec(rest) ?? [rest, null, rest];
    if (plain && /[<>=]/.test(plain)) throw new Error(`${plain}: no column of that name; there are ${listed(columns)}. Text is searched for in quotes: "${plain}"`);
    const part = (quoted ?? plain).toLowerCase();
    found.push((row) => row.some((cell) => cell !== null && text(cell).toLowerCase().includes(part)));
    rest = rest.slice(word.length).trim();
  }
  return found;
}

// The comparison at the beginning. The longest name is meant; of equal ones that with the same capitals, then a title.
function comparisonAt(rest, names) {
  let best = null;
  for (const { name, index } of names) {
    const given = rest.slice(0, name.length);
    if (given.toLowerCase() !== name.toLowerCase() || !name) continue;
    const match = VALUE.exec(rest.slice(name.length));
    const rank = 2 * name.length + (given === name);
    if (match && (!best || rank > best.rank)) best = { index, match, rank, whole: rest.slice(0, name.length) + match[0] };
  }
  return best;
}

function condition({ key, title, number }, index, operator, given, whole) {
  const wanted = given.replace(/^"(.*)"$/, "$1");
  const isEquality = operator.endsWith("=") && !/[<>]/.test(operator);
  const negated = operator === "!=";
  if (!given) throw new Error(`${whole}: the value is missing, as in ${title}${operator}${number || WHOLE.has(key) ? "1" : "a"}`);
  if (key === "state" && !STATES.includes(wanted.toLowerCase())) throw new Error(`${whole}: no state ${wanted}; there are ${STATES.join(", ")}`);
  if ((number || WHOLE.has(key)) && !(isEquality && NOT_FINITE.test(wanted))) {
    const limit = Number(wanted);
    if (Number.isNaN(limit) || !wanted.trim()) throw new Error(`${whole}: ${wanted} is not a number; write ${title} with one of < <= > >= = != and a number, as in ${title}${operator}0.1`);
    return (row) => (typeof row[index] === "number" ? holds(row[index], operator, limit) : negated);
  }
  const word = isEquality ? wanted.toLowerCase() : wanted;
  return (row) => {
    if (row[index] === null) return negated;
    const cell = text(row[index]);
    return holds(isEquality ? cell.toLowerCase() : cell, operator, word);
  };
}

function holds(one, operator, other) {
  switch (operator) {
    case "<": return one < other;
    case ">": return one > other;
    case "<=": return one <= other;
    case ">=": return one >= other;
    case "!=": return one !== other;
    default: return one === other;
  }
}

function listed(columns) {
  const names = columns.map(({ title }) => title);
  return names.slice(0, MOST_NAMED).join(", ") + (names.length > MOST_NAMED ? ` and ${names.length - MOST_NAMED} more` : "");
}
