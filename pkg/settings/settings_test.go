package settings

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
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

func loadWith(args []string, env map[string]string) (farm.Endpoints, *flag.FlagSet, error) {
	var e farm.Endpoints
	fs := flag.NewFlagSet("test", flag.ContinueOnError)
	fs.SetOutput(&strings.Builder{})
	Endpoints(fs, &e)
	var environ []string
	for name, value := range env {
		environ = append(environ, name+"="+value)
	}
	_, err := Load(fs, args, environ)
	return e, fs, err
}

func TestPrecedence(t *testing.T) {
	t.Parallel()
	file := write(t, "s3-bucket: from-file\ns3-region: from-file\nredis-url: from-file\ns3-path-style: true\n")
	secret := write(t, "s3cret\n")
	e, fs, err := loadWith([]string{"--s3-bucket", "from-flag"}, map[string]string{
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
	if strings.Contains(shown, "s3cret") || strings.Contains(shown, "pass@") || !strings.Contains(shown, "\ns3-bucket: from-flag\n") {
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
		if _, _, err := loadWith(c.args, c.env); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestPrintedIsRead feeds what is printed back in.
func TestPrintedIsRead(t *testing.T) {
	t.Parallel()
	want, fs, err := loadWith([]string{"--s3-bucket", "a: b # c", "--s3-region", "007", "--s3-path-style", "--prefix", "no"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	got, _, err := loadWith([]string{"--config", write(t, Print(fs))}, nil)
	if err != nil || got != want {
		t.Fatalf("%+v, %v\nwant %+v\nprinted:\n%s", got, err, want, Print(fs))
	}
}

func TestUnknownVariables(t *testing.T) {
	t.Parallel()
	fs := flag.NewFlagSet("test", flag.ContinueOnError)
	Endpoints(fs, &farm.Endpoints{})
	got, err := Load(fs, nil, []string{
		"HOME=/", "VIDFORGE_S3_BUKCET=typo", "VIDFORGE_S3_BUCKET=b", "VIDFORGE_S3_SECRET_KEY_FILE=" + write(t, "k"), "VIDFORGE_PREFIX=",
		"VIDFORGE_GATEWAY_SERVICE_HOST=10.0.0.1", "VIDFORGE_GATEWAY_PORT=tcp://10.0.0.1:80", "VIDFORGE_GATEWAY_PORT_80_TCP_ADDR=10.0.0.1",
		"VIDFORGE_GATEWAY_SERVICE_PORT_HTTP=80", "VIDFORGE_CONFIG=",
	})
	if err != nil || !slices.Equal(got, []string{"VIDFORGE_S3_BUKCET"}) {
		t.Fatalf("%v, %v", got, err)
	}
}

// A secret that may be changed under a running program has a flag for its file,
// which then is what the variable with _FILE sets: the value is not read here.
func TestFilesOfSecretsArePassedOn(t *testing.T) {
	t.Parallel()
	e, fs, err := loadWith(nil, map[string]string{
		"VIDFORGE_NATS_USER": "worker", "VIDFORGE_NATS_PASSWORD_FILE": "/run/nats", "VIDFORGE_REDIS_PASSWORD": "r3dis",
		"VIDFORGE_S3_SESSION_TOKEN": "t0ken", "VIDFORGE_NATS_TOKEN": "t0ken",
	})
	if err != nil {
		t.Fatal(err)
	}
	if e.NATS.PasswordFile != "/run/nats" || e.NATS.Password != "" || e.Redis.Password != "r3dis" || e.S3.SessionToken != "t0ken" {
		t.Errorf("%+v", e)
	}
	shown := Print(fs)
	if strings.Contains(shown, "r3dis") || strings.Contains(shown, "t0ken") || !strings.Contains(shown, "nats-password-file: /run/nats") {
		t.Errorf("printed:\n%s", shown)
	}
}
