package progress

import "github.com/vidforge/vidforge/pkg/access"

// ACL is what a role needs of Redis: the keys and commands of an ACL rule that
// Redis 6.2 and Valkey understand.
//
// A worker writes progress and beats, and reads who else works; rates are the
// gateways'.
func ACL(prefix string, role access.Role) []string {
	live, workers, rates := "~"+prefix+"live:*", "~"+prefix+"{workers}:*", "~"+prefix+"rate:*"
	if role == access.Worker {
		return []string{live, workers, "+hset", "+pexpire", "+set", "+sadd", "+smembers", "+mget", "+srem", "+ping"}
	}
	return []string{
		live, workers, rates,
		"+hgetall", "+smembers", "+mget", "+srem", // progress and workers
		"+eval", "+evalsha", "+time", "+get", "+set", // rates
		"+ping",
	}
}
