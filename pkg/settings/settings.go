// Package settings fills a program's configuration from a YAML file, the
// environment and flags, in rising precedence. Each setting is one flag: "--keys-file"
// is VIDFORGE_KEYS_FILE in the environment and keys-file in the YAML file.
// VIDFORGE_KEYS_FILE_FILE would name a file that holds the value, which is how
// secrets are mounted.
package settings

import (
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/vidforge/vidforge/pkg/farm"
)

// EnvPrefix begins the name of every variable.
const EnvPrefix = "VIDFORGE_"

// fileSuffix makes the variable that names a file with the value.
const fileSuffix = "_FILE"

// configFlag names the YAML file.
const configFlag = "config"

// Load parses args into the flags of fs, after the YAML file that --config or
// VIDFORGE_CONFIG names and the environment (of os.Environ's shape) were
// applied. Unknown members of the file are errors. Variables that name no
// setting are returned: an environment is shared with other programs, and
// Kubernetes adds to it. flag.ErrHelp is returned as it is.
func Load(fs *flag.FlagSet, args, environ []string) (unknown []string, err error) {
	env := map[string]string{}
	for _, pair := range environ {
		if name, value, ok := strings.Cut(pair, "="); ok && strings.HasPrefix(name, EnvPrefix) {
			env[name] = value
		}
	}
	if err := load(fs, args, env); err != nil {
		return nil, err
	}
	return unknownIn(fs, env), nil
}

// serviceLink is what Kubernetes puts into the environment for each Service
// whose name begins as our variables do.
var serviceLink = regexp.MustCompile(`_(SERVICE_HOST|SERVICE_PORT|SERVICE_PORT_.*|PORT_[0-9]+_.*|PORT)$`)

func unknownIn(fs *flag.FlagSet, env map[string]string) (unknown []string) {
	known := map[string]bool{}
	fs.VisitAll(func(f *flag.Flag) { known[EnvName(f.Name)], known[EnvName(f.Name)+fileSuffix] = true, true })
	for name := range env {
		if !known[name] && !serviceLink.MatchString(name) {
			unknown = append(unknown, name)
		}
	}
	slices.Sort(unknown)
	return unknown
}

func load(fs *flag.FlagSet, args []string, env map[string]string) error {
	file := fs.String(configFlag, "", "YAML `file` with settings named as the flags are")
	if err := fs.Parse(args); err != nil {
		return err //nolint:wrapcheck // the flag package's own words
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	given := map[string]string{}
	fs.Visit(func(f *flag.Flag) { given[f.Name] = f.Value.String() })
	if path, ok := env[EnvName(configFlag)]; ok && *file == "" {
		*file = path
	}
	if *file != "" {
		if err := applyFile(fs, *file); err != nil {
			return err
		}
	}
	if err := applyEnv(fs, env); err != nil {
		return err
	}
	for name, value := range given {
		if err := fs.Set(name, value); err != nil {
			return fmt.Errorf("--%s: %w", name, err)
		}
	}
	return nil
}

func applyFile(fs *flag.FlagSet, path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read settings: %w", err)
	}
	var values map[string]any
	if err := yaml.Unmarshal(b, &values); err != nil {
		return fmt.Errorf("parse %s: %w", path, err)
	}
	var errs []error
	for name, v := range values {
		switch v.(type) {
		case string, int, bool, float64:
		default:
			errs = append(errs, fmt.Errorf("%s: %s must be a plain value", path, name))
			continue
		}
		if fs.Lookup(name) == nil || name == configFlag {
			errs = append(errs, fmt.Errorf("%s: there is no setting %s", path, name))
			continue
		}
		if err := fs.Set(name, fmt.Sprint(v)); err != nil {
			errs = append(errs, fmt.Errorf("%s: %s: %w", path, name, err))
		}
	}
	return errors.Join(errs...)
}

// EnvName is the variable of a flag.
func EnvName(name string) string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

func applyEnv(fs *flag.FlagSet, env map[string]string) error {
	var errs []error
	fs.VisitAll(func(f *flag.Flag) {
		name := EnvName(f.Name)
		value, ok := env[name]
		if path, isFile := env[name+fileSuffix]; isFile && fs.Lookup(f.Name+"-file") == nil {
			if ok {
				errs = append(errs, fmt.Errorf("%s and %s_FILE are both set", name, name))
				return
			}
			b, err := os.ReadFile(path)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s_FILE: %w", name, err))
				return
			}
			value, ok = strings.TrimRight(string(b), "\r\n"), true
		}
		if !ok || f.Name == configFlag {
			return
		}
		if err := f.Value.Set(value); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	})
	return errors.Join(errs...)
}

// Endpoints adds the flags of a farm's stores.
func Endpoints(fs *flag.FlagSet, e *farm.Endpoints) {
	fs.StringVar(&e.Prefix, "prefix", "", "letters and digits that begin every name in NATS and Redis, for several farms on the same servers")
	fs.StringVar(&e.NATSURL, "nats-url", "nats://127.0.0.1:4222", "`URL` of NATS, nats:// or tls://, or several with commas between them")
	fs.StringVar(&e.NATS.CAFile, "nats-ca-file", "", "`file` with the authorities (PEM) for NATS's certificate, instead of the system's")
	fs.StringVar(&e.NATS.CertFile, "nats-cert-file", "", "`file` with this process's certificate (PEM) for NATS")
	fs.StringVar(&e.NATS.KeyFile, "nats-key-file", "", "`file` with the key (PEM) of --nats-cert-file")
	fs.StringVar(&e.NATS.CredsFile, "nats-creds-file", "", "`file` with a JWT and its seed for NATS")
	fs.StringVar(&e.NATS.NKeyFile, "nats-nkey-file", "", "`file` with the seed of an nkey for NATS")
	fs.StringVar(&e.NATS.User, "nats-user", "", "user at NATS")
	fs.StringVar(&e.NATS.Password, "nats-password", "", "password of --nats-user")
	fs.StringVar(&e.NATS.PasswordFile, "nats-password-file", "", "`file` with the password of --nats-user, read again for each connection")
	fs.StringVar(&e.NATS.Token, "nats-token", "", "token for NATS")
	fs.StringVar(&e.NATS.TokenFile, "nats-token-file", "", "`file` with the token for NATS, read again for each connection")
	fs.StringVar(&e.NATS.Inbox, "nats-inbox", "", "`subject` that begins this process's answers, which its NATS user alone may listen to (default _INBOX)")
	fs.StringVar(&e.NATS.API, "nats-api", "", "`subject` that begins requests to JetStream, where it is imported from another account (default $JS.API)")
	fs.StringVar(&e.RedisURL, "redis-url", "redis://127.0.0.1:6379", "`URL` of Redis, redis:// or rediss://")
	fs.StringVar(&e.Redis.CAFile, "redis-ca-file", "", "`file` with the authorities (PEM) for Redis's certificate, instead of the system's")
	fs.StringVar(&e.Redis.CertFile, "redis-cert-file", "", "`file` with this process's certificate (PEM) for Redis")
	fs.StringVar(&e.Redis.KeyFile, "redis-key-file", "", "`file` with the key (PEM) of --redis-cert-file")
	fs.StringVar(&e.Redis.User, "redis-user", "", "user at Redis (default: the user \"default\")")
	fs.StringVar(&e.Redis.Password, "redis-password", "", "password at Redis")
	fs.StringVar(&e.Redis.PasswordFile, "redis-password-file", "", "`file` with the password at Redis, read again for each connection")
	fs.StringVar(&e.S3.Endpoint, "s3-endpoint", "", "`URL` at which this process reaches the object store")
	fs.StringVar(&e.S3.PublicEndpoint, "s3-public-endpoint", "", "`URL` at which clients reach the object store (default: --s3-endpoint)")
	fs.StringVar(&e.S3.CAFile, "s3-ca-file", "", "`file` with the authorities (PEM) for the object store's certificate, instead of the system's")
	fs.StringVar(&e.S3.Region, "s3-region", "us-east-1", "region that requests are signed for; auto for stores that have none")
	fs.StringVar(&e.S3.Bucket, "s3-bucket", "vidforge", "bucket of every object")
	fs.StringVar(&e.S3.AccessKey, "s3-access-key", "", "access key (default: what the AWS SDKs would use: AWS_* variables, a shared file, the role of the pod or machine)")
	fs.StringVar(&e.S3.SecretKey, "s3-secret-key", "", "secret key")
	fs.StringVar(&e.S3.SessionToken, "s3-session-token", "", "session token of temporary keys")
	fs.StringVar(&e.S3.CredentialsFile, "s3-credentials-file", "", "`file` with keys in the format of the AWS SDKs, read again when it changes")
	fs.BoolVar(&e.S3.PathStyle, "s3-path-style", false, "put the bucket into the path")
	fs.BoolVar(&e.S3.CreateBucket, "s3-create-bucket", false, "make the bucket if it is not there")
}

// Tuning adds the flags of the sizes and times that all programs of a farm
// share.
func Tuning(fs *flag.FlagSet, t *farm.Tuning) {
	fs.IntVar(&t.Shards, "shards", 0, "buckets that records are spread over, for the farm's first start; 8 suits a cluster (default: those that are there, else 1)")
	fs.IntVar(&t.Replicas, "replicas", 0, "copies of everything in NATS: 1, 3 or 5 (default: those that are there, else 1)")
	fs.IntVar(&t.MaxWorkers, "max-workers", 0, "works of one class that may run at once in the farm (default 4096)")
	fs.DurationVar(&t.AckWait, "ack-wait", 0, "how long a worker may give no sign of life before its work is given to another (default 20s)")
	fs.DurationVar(&t.LeaseTime, "lease-time", 0, "how long the right to do a work lives without renewal, whole seconds (default 20s)")
	fs.DurationVar(&t.BeatEvery, "beat-every", 0, "how often running work gives a sign of life (default: a third of the shorter of ack wait and lease time, at most 6s)")
	fs.DurationVar(&t.ReconcileEvery, "reconcile-every", 0, "mean time between two looks at what is not finished (default 15s)")
}

// Print shows the settings in force as a YAML file that would give the same,
// but for secrets, which are only named.
func Print(fs *flag.FlagSet) string {
	var out strings.Builder
	fs.VisitAll(func(f *flag.Flag) { // in order of the names
		if f.Name == configFlag {
			return
		}
		_, usage := flag.UnquoteUsage(f)
		fmt.Fprintf(&out, "# %s\n", usage)
		value := f.Value.String()
		if value != "" && secret(f.Name, value) {
			fmt.Fprintf(&out, "# %s: (set, not shown)\n", f.Name)
			return
		}
		line, err := yaml.Marshal(map[string]any{f.Name: plain(f.Value)})
		if err != nil {
			line = fmt.Appendf(nil, "# %s: %v\n", f.Name, err)
		}
		out.Write(line)
	})
	return out.String()
}

// plain is a value as YAML writes it best.
func plain(v flag.Value) any {
	if g, ok := v.(flag.Getter); ok {
		switch x := g.Get().(type) {
		case bool, int, int64, uint, uint64, float64:
			return x
		}
	}
	return v.String()
}

// secret reports whether a setting's value must not be shown: by its name, or
// because it is a URL with a password.
func secret(name, value string) bool {
	for _, suffix := range []string{"-key", "-password", "-token", "-secret"} {
		if strings.HasSuffix(name, suffix) {
			return true
		}
	}
	for part := range strings.SplitSeq(value, ",") {
		if u, err := url.Parse(part); err != nil && strings.Contains(part, "@") || err == nil && u.User != nil {
			return true
		}
	}
	return false
}
