package access_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/vidforge/vidforge/pkg/access"
)

func rights(r access.Role) access.NATS {
	n := access.NATS{Publish: []string{"$JS.API.STREAM.INFO.s", "$JS.API.CONSUMER.MSG.NEXT.s.c", "a.>"}, Pull: []string{"$JS.API.CONSUMER.MSG.NEXT.s.c"}, Subscribe: []string{"b.*"}}
	if r == access.Gateway {
		n.Publish = append(n.Publish, "$JS.API.STREAM.CREATE.s")
	}
	return n
}

func TestNATSConfig(t *testing.T) {
	t.Parallel()
	got, err := access.NATSConfig("P", rights, []access.User{{Name: "front-1", Role: access.Gateway}, {Name: "back", Role: access.Worker}})
	if err != nil {
		t.Fatal(err)
	}
	farm, workers, ok := strings.Cut(got, "\n  VIDFORGEP_WORKERS {")
	if !ok || !strings.HasPrefix(farm, "accounts {\n  VIDFORGEP {\n    jetstream: enabled\n") || strings.Contains(workers, "jetstream") {
		t.Fatalf("not two accounts, one with JetStream:\n%s", got)
	}
	for _, want := range []string{
		`user: "front-1", password: $NATS_PASSWORD_FRONT_1`,
		`"$JS.API.STREAM.CREATE.s"`,
		`subscribe: { allow: ["_INBOX_front-1.>", "b.*"] }`,
		`{ service: "$JS.API.STREAM.INFO.s", accounts: [VIDFORGEP_WORKERS] }`,
		`{ service: "$JS.API.CONSUMER.MSG.NEXT.s.c", accounts: [VIDFORGEP_WORKERS], response_type: stream }`,
		`{ stream: "b.*", accounts: [VIDFORGEP_WORKERS] }`,
	} {
		if !strings.Contains(farm, want) {
			t.Errorf("the farm's account lacks %s:\n%s", want, farm)
		}
	}
	for _, want := range []string{
		`user: "back", password: $NATS_PASSWORD_BACK`,
		`publish: { allow: ["VIDFORGE.API.STREAM.INFO.s", "VIDFORGE.API.CONSUMER.MSG.NEXT.s.c", "a.>"] }`,
		`{ service: { account: VIDFORGEP, subject: "$JS.API.STREAM.INFO.s" }, to: "VIDFORGE.API.STREAM.INFO.s" }`,
		`{ service: { account: VIDFORGEP, subject: "a.>" } }`,
		`{ stream: { account: VIDFORGEP, subject: "b.*" } }`,
	} {
		if !strings.Contains(workers, want) {
			t.Errorf("the workers' account lacks %s:\n%s", want, workers)
		}
	}
	if strings.Contains(workers, "CREATE") || strings.Contains(workers, "front-1") {
		t.Errorf("the workers' account has what is the gateway's:\n%s", workers)
	}
}

// TestNamesStayNames: a name cannot become configuration.
func TestNamesStayNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", `a" }`, "a b", "a\nuser b on nopass", "a.>", "*", "$X", strings.Repeat("x", 65)} {
		users := []access.User{{Name: name, Role: access.Worker}}
		if _, err := access.NATSConfig("", rights, users); err == nil {
			t.Errorf("NATS takes the name %q", name)
		}
		if _, err := access.RedisACL(func(access.Role) []string { return nil }, users); err == nil {
			t.Errorf("Redis takes the name %q", name)
		}
	}
	policy, err := access.S3Policy(func(access.Role) []access.Statement {
		return []access.Statement{{Action: []string{"s3:GetObject"}, Resource: []string{"arn:aws:s3:::b/*"}}}
	}, []access.User{{Name: `x"], "AWS": ["*`, Role: access.Worker}})
	if err != nil {
		t.Fatal(err)
	}
	var p struct {
		Statement []struct{ Principal struct{ AWS []string } }
	}
	if err := json.Unmarshal([]byte(policy), &p); err != nil || len(p.Statement) != 1 || len(p.Statement[0].Principal.AWS) != 1 {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestRedisACL(t *testing.T) {
	t.Parallel()
	got, err := access.RedisACL(func(r access.Role) []string { return []string{"~" + string(r) + ":*", "+get"} }, []access.User{{Name: "w-1", Role: access.Worker}})
	if want := "user default off\nuser w-1 on >${REDIS_PASSWORD_W_1} ~worker:* +get\n"; err != nil || got != want {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
}
