// The order of what the search finds: how-to guides before names of the API, and the changelog last.
// The numbers are Sphinx's own, except for those of `score`.
// Sphinx declares the same name with var, so const would be an error.
var Scorer = {
  score: ([page, , , , score]) => score + (page.startsWith("howto/") ? 8 : page === "changelog" ? -20 : 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
