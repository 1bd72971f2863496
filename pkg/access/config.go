package access

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// User is one set of credentials.
type User struct {
	// Name is [A-Za-z0-9_-]+ for NATS and Redis; for S3 it is what the store
	// calls a principal: an ARN at AWS, an access key elsewhere.
	Name string
	Role Role
}

var namePattern = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

func checkNames(users []User) error {
	for _, u := range users {
		if !namePattern.MatchString(u.Name) {
			return fmt.Errorf("access: user name %q: must be letters, digits, - and _", u.Name)
		}
	}
	return nil
}

// passwordVariable names the variable that holds a user's password.
func passwordVariable(server, user string) string {
	return server + "_PASSWORD_" + strings.ToUpper(strings.ReplaceAll(user, "-", "_"))
}

// WorkerAPI is the prefix under which the workers' account has JetStream's API.
const WorkerAPI = "VIDFORGE.API"

// Inbox is the prefix of the answers that a user alone may listen to.
func Inbox(user string) string { return "_INBOX_" + user }

// NATSConfig is a fragment of a nats-server's configuration with two accounts:
// one with the farm's streams, for gateways, and one that imports from it what
// workers need. rights says what each role needs, prefix is the farm's.
// Passwords are read from the server's environment.
//
// Permissions of users alone would not do: the server sends the answer to an
// API request to whatever subject the request names, without asking whether the
// asking user may publish there, so that a user who may read one stream could
// overwrite the messages of another. An answer to another account goes no
// further than that account.
func NATSConfig(prefix string, rights func(Role) NATS, users []User) (string, error) {
	if err := checkNames(users); err != nil {
		return "", err
	}
	farm, workers := "VIDFORGE"+prefix, "VIDFORGE"+prefix+"_WORKERS"
	w := rights(Worker)
	var b strings.Builder
	fmt.Fprintf(&b, "accounts {\n  %s {\n    jetstream: enabled\n    users: [\n", farm)
	for _, u := range users {
		if u.Role == Gateway {
			writeUser(&b, u.Name, rights(Gateway), DefaultAPI)
		}
	}
	b.WriteString("    ]\n    exports: [\n")
	for _, s := range w.Publish {
		fmt.Fprintf(&b, "      { service: %q, accounts: [%s]%s }\n", s, workers, responses(w, s))
	}
	for _, s := range w.Subscribe {
		fmt.Fprintf(&b, "      { stream: %q, accounts: [%s] }\n", s, workers)
	}
	fmt.Fprintf(&b, "    ]\n  }\n  %s {\n    users: [\n", workers)
	for _, u := range users {
		if u.Role == Worker {
			writeUser(&b, u.Name, w, WorkerAPI)
		}
	}
	b.WriteString("    ]\n    imports: [\n")
	for _, s := range w.Publish {
		to := ""
		if own := ownSubject(s, WorkerAPI); own != s {
			to = fmt.Sprintf(", to: %q", own)
		}
		fmt.Fprintf(&b, "      { service: { account: %s, subject: %q }%s }\n", farm, s, to)
	}
	for _, s := range w.Subscribe {
		fmt.Fprintf(&b, "      { stream: { account: %s, subject: %q } }\n", farm, s)
	}
	b.WriteString("    ]\n  }\n}\n")
	return b.String(), nil
}

func responses(n NATS, subject string) string {
	if slices.Contains(n.Pull, subject) {
		return ", response_type: stream"
	}
	return ""
}

// ownSubject is what a farm's subject is called in an account with that prefix
// of the API.
func ownSubject(subject, api string) string {
	if rest, ok := strings.CutPrefix(subject, DefaultAPI+"."); ok {
		return api + "." + rest
	}
	return subject
}

func writeUser(b *strings.Builder, name string, n NATS, api string) {
	publish := make([]string, 0, len(n.Publish))
	for _, s := range n.Publish {
		publish = append(publish, ownSubject(s, api))
	}
	fmt.Fprintf(b, "      {\n        user: %q, password: $%s\n        permissions: {\n          publish: { allow: %s }\n          subscribe: { allow: %s }\n        }\n      }\n",
		name, passwordVariable("NATS", name), list(publish), list(append([]string{Inbox(name) + ".>"}, n.Subscribe...)))
}

func list(subjects []string) string {
	quoted := make([]string, 0, len(subjects))
	for _, s := range subjects {
		quoted = append(quoted, fmt.Sprintf("%q", s))
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// RedisACL are the lines of an ACL file. It switches the user "default" off.
// Passwords are left as shell variables: run it through envsubst.
func RedisACL(rules func(Role) []string, users []User) (string, error) {
	if err := checkNames(users); err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString("user default off\n")
	for _, u := range users {
		fmt.Fprintf(&b, "user %s on >${%s} %s\n", u.Name, passwordVariable("REDIS", u.Name), strings.Join(rules(u.Role), " "))
	}
	return b.String(), nil
}

// Statement is one of an S3 policy: it allows actions on resources.
type Statement struct {
	Action, Resource []string
}

// S3Policy is a bucket's policy.
func S3Policy(statements func(Role) []Statement, users []User) (string, error) {
	type principal struct {
		AWS []string `json:"AWS"`
	}
	type statement struct {
		Effect    string    `json:"Effect"`
		Principal principal `json:"Principal"`
		Action    []string  `json:"Action"`
		Resource  []string  `json:"Resource"`
	}
	policy := struct {
		Version   string      `json:"Version"`
		Statement []statement `json:"Statement"`
	}{Version: "2012-10-17"}
	for _, role := range Roles() {
		var names []string
		for _, u := range users {
			if u.Role == role {
				names = append(names, u.Name)
			}
		}
		if len(names) == 0 {
			continue
		}
		for _, s := range statements(role) {
			policy.Statement = append(policy.Statement, statement{"Allow", principal{names}, s.Action, s.Resource})
		}
	}
	out, err := json.MarshalIndent(policy, "", "  ")
	if err != nil {
		return "", fmt.Errorf("access: encode policy: %w", err)
	}
	return string(out) + "\n", nil
}
