// Package performance measures whole programs against what they could cost at
// best. Nothing here is a test: figures depend on the machine, ratios of runs
// that alternate less so.
package performance
