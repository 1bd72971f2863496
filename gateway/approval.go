package gateway

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"

	"github.com/vidforge/vidforge/gateway/internal/auth"
	"github.com/vidforge/vidforge/pkg/apikey"
	"github.com/vidforge/vidforge/pkg/render"
)

var errNoSignIn = errors.New("the approval policy human needs SignInIssuer: nobody could sign in to decide")

// validateApproval checks that whoever has to decide can.
func (c Config) validateApproval() error {
	switch {
	case c.ApprovalPolicy != "" && c.ApprovalPolicy != apikey.PolicyAgent && c.ApprovalPolicy != apikey.PolicyHuman:
		return fmt.Errorf("ApprovalPolicy %q must be %s or %s", c.ApprovalPolicy, apikey.PolicyAgent, apikey.PolicyHuman)
	case c.SignInIssuer == "" && (c.SignInClientID != "" || c.SignInClientSecret != ""):
		return errors.New("SignInClientID is set and SignInIssuer is not")
	case c.ApprovalPolicy == apikey.PolicyHuman && c.SignInIssuer == "" && !c.unprotected():
		return errNoSignIn
	}
	return nil
}

// unprotected farms ask nobody for a credential; only their own machine reaches
// them.
func (c Config) unprotected() bool { return c.KeysFile == "" && c.OAuthIssuers == "" }

// acceptKeys refuses a keys file with a policy that could not be kept.
func (c Config) acceptKeys(f apikey.File) error {
	for name, t := range f.Tenants {
		if t.ApprovalPolicy == apikey.PolicyHuman && c.SignInIssuer == "" {
			return fmt.Errorf("tenant %s: %w", name, errNoSignIn)
		}
	}
	return nil
}

// humanApproval tells the policy of a tenant. keys may be nil.
func (c Config) humanApproval(keys *auth.Keys) func(render.Tenant) bool {
	return func(tenant render.Tenant) bool {
		own := ""
		if keys != nil {
			own = keys.ApprovalPolicy(tenant)
		}
		return cmp.Or(own, c.ApprovalPolicy) == apikey.PolicyHuman
	}
}

// openSignIn lets people sign in to the approval page: at the OpenID provider,
// or, where only this machine reaches a farm whose previews wait for a person,
// by a code that is shown once, at the start.
func (s *server) openSignIn(a *auth.Authenticator, public *url.URL, human func(render.Tenant) bool, key []byte) (err error) {
	c := auth.SignInConfig{
		Issuer: s.cfg.SignInIssuer, ClientID: s.cfg.SignInClientID, ClientSecret: s.cfg.SignInClientSecret,
		TenantClaim: s.cfg.OAuthTenantClaim, Public: public, Secret: key, Logger: s.cfg.Logger,
	}
	if c.Issuer == "" {
		if !s.cfg.unprotected() || !human(render.LocalTenant) {
			return nil
		}
		c.Code = rand.Text()
		s.signInCode = c.Code
	}
	a.Open = func() bool { return !human(render.LocalTenant) }
	a.SignIn, err = auth.NewSignIn(c)
	return err
}
