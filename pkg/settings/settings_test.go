package settings

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vidforge/vidforge/pkg/farm"
)

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func load(args []string, env map[string]string) (farm.Endpoints, *flag.FlagSet, error) {
	var e farm.Endpoints
	fs := flag.NewFlagSet("test", flag.ContinueOnError)
	fs.SetOutput(&strings.Builder{})
	Endpoints(fs, &e)
	err := Load(fs, args, func(k string) (string, bool) { v, ok := env[k]; return v, ok })
	return e, fs, err
}

func TestPrecedence(t *testing.T) {
	t.Parallel()
	file := write(t, "s3-bucket: from-file\ns3-region: from-file\nredis-url: from-file\ns3-path-style: true\n")
	secret := write(t, "s3cret\n")
	e, fs, err := load([]string{"--s3-bucket", "from-flag"}, map[string]string{
		"VIDFORGE_CONFIG": file, "VIDFORGE_S3_BUCKET": "from-env", "VIDFORGE_S3_REGION": "from-env",
		"VIDFORGE_S3_SECRET_KEY_FILE": secret, "VIDFORGE_NATS_URL": "nats://user:pass@host",
	})
	if err != nil {
		t.Fatal(err)
	}
	if e.S3.Bucket != "from-flag" || e.S3.Region != "from-env" || e.RedisURL != "from-file" || !e.S3.PathStyle || e.S3.SecretKey != "s3cret" {
		t.Fatalf("%+v", e)
	}
	shown := Print(fs)
	if strings.Contains(shown, "s3cret") || strings.Contains(shown, "pass@") || !strings.Contains(shown, `s3-bucket: "from-flag"`) {
		t.Fatalf("printed:\n%s", shown)
	}
}

func TestLoadRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args []string
		env  map[string]string
		want string
	}{
		"unknown member": {[]string{"--config", write(t, "colour: red")}, nil, "no setting colour"},
		"nested":         {[]string{"--config", write(t, "s3-bucket: [a]")}, nil, "plain value"},
		"wrong type":     {nil, map[string]string{"VIDFORGE_S3_PATH_STYLE": "maybe"}, "VIDFORGE_S3_PATH_STYLE"},
		"both":           {nil, map[string]string{"VIDFORGE_S3_SECRET_KEY": "a", "VIDFORGE_S3_SECRET_KEY_FILE": "b"}, "both set"},
		"missing file":   {nil, map[string]string{"VIDFORGE_S3_SECRET_KEY_FILE": "/does/not/exist"}, "SECRET_KEY_FILE"},
		"unknown flag":   {[]string{"--colour"}, nil, "colour"},
		"argument":       {[]string{"up"}, nil, "unexpected argument"},
	} {
		if _, _, err := load(c.args, c.env); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
